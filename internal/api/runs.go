package api

import (
	"net/http"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/internal/engine"
)

// reasonRequest is the body of calls that need a reason and nothing else.
type reasonRequest struct {
	Reason string `json:"reason"`
}

// eventsAnswer is evidence in order.
type eventsAnswer struct {
	Events []holdpoint.Event `json:"events"`
}

var (
	runStates = []string{string(holdpoint.RunProcessing), string(holdpoint.RunAwaitingHuman), string(holdpoint.RunApproved), string(holdpoint.RunCompleted),
		string(holdpoint.RunFailedRetryable), string(holdpoint.RunFailedTerminal)}
	notFound = []holdpoint.Code{holdpoint.CodeNotFound}
)

func runRoutes() []route {
	return []route{
		{pattern: "GET /v1/runs", id: "listRuns", summary: "List runs, newest first.", serve: listRuns, answers: map[int]any{http.StatusOK: engine.RunPage{}},
			query: append([]param{{name: "key", about: "the idempotency key"}, {name: "workflow"}, {name: "state", allowed: runStates},
				{name: "record", about: "the record of the operation"}}, paging...)},
		{pattern: "GET /v1/runs/{id}", id: "getRun", summary: "One run with everything that hangs on it; content for those who may see it.", serve: getRun,
			answers: map[int]any{http.StatusOK: engine.RunView{}}, codes: notFound},
		{pattern: "GET /v1/runs/{id}/evidence", id: "getRunEvidence", summary: "The run's events in order.", serve: runEvidence,
			answers: map[int]any{http.StatusOK: eventsAnswer{}}, codes: notFound},
		{pattern: "GET /v1/evidence", id: "getTenantEvidence", summary: "The events that belong to the tenant and to no run, in order.", serve: tenantEvidence,
			answers: map[int]any{http.StatusOK: eventsAnswer{}}},
		with(route{pattern: "POST /v1/runs/{id}/replace", id: "replaceRun", summary: "Link a correction under its own upstream-issued key: 201 a new run, 200 an existing one.",
			answers: map[int]any{http.StatusCreated: engine.Replacement{}, http.StatusOK: engine.Replacement{}},
			codes: append([]holdpoint.Code{holdpoint.CodeInvalidKey, holdpoint.CodeInitiatorMissing, holdpoint.CodeUnknownWorkflow, holdpoint.CodeInvalidPolicy,
				holdpoint.CodeDerivedKey, holdpoint.CodeMismatch}, moveCodes...)}, replaceRun),
		with(route{pattern: "POST /v1/runs/{id}/cancel", id: "cancelRun", summary: "End a run that waits; nothing that has not begun is sent.",
			answers: map[int]any{http.StatusOK: runAnswer{}}, codes: moveCodes}, cancelRun),
	}
}

func listRuns(c *call) (answer, error) {
	page, err := c.engine().Runs(c.ctx, c.actor, engine.RunQuery{Key: c.query["key"], Workflow: c.query["workflow"], Record: c.query["record"],
		State: holdpoint.RunState(c.query["state"]), Cursor: c.query["cursor"], Limit: c.number("limit")})
	return ok(page), err
}

func getRun(c *call) (answer, error) {
	v, err := c.engine().Run(c.ctx, c.actor, c.path("id"))
	return ok(v), err
}

func runEvidence(c *call) (answer, error) {
	events, err := c.engine().Evidence(c.ctx, c.actor, c.path("id"))
	return ok(eventsAnswer{events}), err
}

func tenantEvidence(c *call) (answer, error) {
	events, err := c.engine().Evidence(c.ctx, c.actor, "")
	return ok(eventsAnswer{events}), err
}

func replaceRun(c *call, r engine.ReplaceRequest) (answer, error) {
	v, err := c.engine().Replace(c.ctx, c.actor, c.path("id"), r)
	if v.Created {
		return created(v), err
	}
	return ok(v), err
}

func cancelRun(c *call, r reasonRequest) (answer, error) {
	run, err := c.engine().CancelRun(c.ctx, c.actor, c.path("id"), r.Reason)
	return ok(runAnswer{run}), err
}
