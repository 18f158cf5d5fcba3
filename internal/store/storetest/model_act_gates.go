package storetest

import (
	"cmp"
	"slices"
	"time"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/internal/store"
)

// sortedBy gives an answer whose order the contract leaves open in the order of a key.
func sortedBy[T any](list []T, err error) func(key func(T) string) ([]T, error) {
	return func(key func(T) string) ([]T, error) {
		slices.SortFunc(list, func(a, b T) int { return cmp.Compare(key(a), key(b)) })
		return list, err
	}
}

// someApproval draws an approval, mostly one in this state, seldom one that is not there.
func (w *twin) someApproval(state holdpoint.ApprovalState) holdpoint.Approval {
	var all, fit []holdpoint.Approval
	for _, r := range w.model.sorted(modelTenants[0]) {
		for _, a := range r.Approvals {
			if all = append(all, a); a.State == state {
				fit = append(fit, a)
			}
		}
	}
	switch {
	case len(all) == 0:
		return holdpoint.Approval{Tenant: modelTenants[0], ID: "approval-none"}
	case len(fit) > 0 && !w.seldom("any state", 5):
		return pick(w, "approval", fit...)
	}
	return pick(w, "approval", all...)
}

func actDecide(w *twin) {
	w.decide(w.someApproval(holdpoint.ApprovalPending), pick(w, "decision", append(everyDecision, holdpoint.DecisionApprove)...))
}

func (w *twin) decide(a holdpoint.Approval, what holdpoint.Decision) {
	d := store.Decision{Tenant: a.Tenant, ID: w.id("decision"), ApprovalID: a.ID, Digest: a.Digest, Person: pick(w, "person", jane, joe), Decision: what,
		ReasonText: pick(w, "reason", nil, []byte("why")), Assurance: "login", How: "session", Budget: 2 * time.Hour, Messages: w.someMessages(a.RunID),
		Who: holdpoint.Who{Kind: "person", ID: "p", How: "session"}}
	if w.seldom("stale", 10) {
		d.Digest = "digest-of-another-revision"
	}
	_, _ = ask(w, "Decide", func(s store.Store) (store.DecisionResult, error) { return s.Decide(w.ctx, d) })
}

func actWithdrawApproval(w *twin) {
	a := w.someApproval(pick(w, "state", holdpoint.ApprovalPending, holdpoint.ApprovalApproved))
	_, _ = ask(w, "WithdrawApproval", func(s store.Store) (store.DecisionResult, error) {
		return s.WithdrawApproval(w.ctx, a.Tenant, a.ID, []byte("why"), operator)
	})
}

// someChallenge draws a way in, seldom one that is not there.
func (w *twin) someChallenge() (tenant, id string) {
	ids := []string{"challenge-none"}
	for _, r := range w.model.sorted(modelTenants[0]) {
		for _, c := range r.Challenges {
			ids = append(ids, c.ID)
		}
	}
	return w.tenant(), pick(w, "challenge", ids...)
}

func actMintChallengeToken(w *twin) {
	tenant, id := w.someChallenge()
	hash := pick(w, "token", "t1", "t2", "t3")
	_, _ = ask(w, "MintChallengeToken", func(s store.Store) (none, error) { return none{}, s.MintChallengeToken(w.ctx, tenant, id, hash) })
}

func actChallengeByToken(w *twin) {
	hash := pick(w, "token", "t1", "t2", "t3", "t4")
	_, _ = ask(w, "ChallengeByToken", func(s store.Store) (holdpoint.Challenge, error) { return s.ChallengeByToken(w.ctx, hash) })
}

func actOpenChallenge(w *twin) {
	tenant, id := w.someChallenge()
	_, _ = ask(w, "OpenChallenge", func(s store.Store) (holdpoint.Challenge, error) { return s.OpenChallenge(w.ctx, tenant, id) })
}

func actApprovalByID(w *twin) {
	a, tenant := w.someApproval(""), w.tenant()
	_, _ = ask(w, "ApprovalByID", func(s store.Store) (holdpoint.Approval, error) { return s.ApprovalByID(w.ctx, tenant, a.ID) })
}

func actFindApprovals(w *twin) {
	state, limit := pick(w, "state", "", holdpoint.ApprovalPending, holdpoint.ApprovalApproved), pick(w, "limit", 0, 1, 2)
	cursor := pick(w, "cursor", "", "", w.someApproval("").ID)
	_, _ = ask(w, "FindApprovals", func(s store.Store) (pair[[]holdpoint.Approval, string], error) {
		return two(s.FindApprovals(w.ctx, modelTenants[0], state, cursor, limit))
	})
}
