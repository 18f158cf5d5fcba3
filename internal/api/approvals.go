package api

import (
	"net/http"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/internal/engine"
	"github.com/holdpoint/holdpoint/internal/lang"
)

var approvalStates = []string{string(holdpoint.ApprovalPending), string(holdpoint.ApprovalApproved), string(holdpoint.ApprovalRejected),
	string(holdpoint.ApprovalSentBack), string(holdpoint.ApprovalExpired), string(holdpoint.ApprovalWithdrawn), string(holdpoint.ApprovalInvalidated)}

func approvalRoutes() []route {
	return []route{
		{pattern: "GET /v1/approvals", id: "listApprovals", summary: "List the approvals that the caller may see.", serve: listApprovals,
			query: append([]param{{name: "state", allowed: approvalStates}}, paging...), answers: map[int]any{http.StatusOK: engine.ApprovalPage{}}},
		{pattern: "GET /v1/approvals/{id}", id: "getApproval", summary: "One approval with its digest, the quorum given and missing, and what it would release.",
			headers: []param{{name: "Accept-Language", about: "the language of sentence"}},
			serve:   getApproval, answers: map[int]any{http.StatusOK: engine.Card{}}, codes: []holdpoint.Code{holdpoint.CodeNotFound, holdpoint.CodeInvalidPolicy}},
		with(route{pattern: "POST /v1/approvals/{id}/decisions", id: "decide", summary: "Decide about one digest as the person whose token this is.",
			answers: map[int]any{http.StatusOK: engine.DecisionAnswer{}},
			codes: append([]holdpoint.Code{holdpoint.CodeStaleDigest, holdpoint.CodeAlreadyDecided,
				holdpoint.CodeInvalidPolicy}, moveCodes...)}, decide),
		with(route{pattern: "POST /v1/approvals/{id}/withdraw", id: "withdrawApproval", summary: "Take a question back, or what it released and has not begun.",
			answers: map[int]any{http.StatusOK: withdrawal{}}, codes: moveCodes}, withdraw),
	}
}

func listApprovals(c *call) (answer, error) {
	page, err := c.engine().Approvals(c.ctx, c.actor, holdpoint.ApprovalState(c.query["state"]), c.query["cursor"], c.number("limit"))
	return ok(page), err
}

func getApproval(c *call) (answer, error) {
	card, err := c.engine().Approval(c.ctx, c.actor, c.path("id"), lang.Choose("", c.r.Header.Get("Accept-Language")))
	return ok(card), err
}

func decide(c *call, r engine.DecisionRequest) (answer, error) {
	a, err := c.engine().Decide(c.ctx, c.actor, c.path("id"), r)
	return ok(a), err
}

// withdrawal is what stands after an approval was withdrawn.
type withdrawal struct {
	Approval engine.ApprovalBrief `json:"approval"`
	Run      holdpoint.Run        `json:"run"`
	Effects  []holdpoint.Effect   `json:"effects"`
}

func withdraw(c *call, r reasonRequest) (answer, error) {
	a, err := c.engine().Withdraw(c.ctx, c.actor, c.path("id"), r.Reason)
	return ok(withdrawal{a.Approval, a.Run, a.Effects}), err
}
