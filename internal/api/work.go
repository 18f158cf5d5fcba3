package api

import (
	"net/http"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/internal/engine"
)

// The answers of work calls.
type (
	leaseAnswer struct {
		Lease holdpoint.Lease `json:"lease"`
	}
	stepAnswer struct {
		Step holdpoint.Step `json:"step"`
	}
	runAnswer struct {
		Run holdpoint.Run `json:"run"`
	}
	// beginAnswer says what to do with a step. Code goes with 409: in_progress or uncertain.
	beginAnswer struct {
		engine.StepAnswer
		Code holdpoint.Code `json:"code,omitempty"`
	}
)

func workRoutes() []route {
	run, step := "POST /v1/runs/{id}/", "POST /v1/runs/{id}/steps/{name}/"
	return []route{
		with(route{pattern: run + "renew", id: "renewLease", summary: "Extend the lease from now, never past its cap.",
			answers: map[int]any{http.StatusOK: leaseAnswer{}}, codes: append(workCodes, holdpoint.CodeInvalidPolicy)}, renew),
		with(route{pattern: step + "begin", id: "beginStep", summary: "Ask whether a step is to be run: 201 run, 200 done, 409 in_progress or uncertain.",
			answers: map[int]any{http.StatusCreated: beginAnswer{}, http.StatusOK: beginAnswer{}, http.StatusConflict: beginAnswer{}}, codes: append(workCodes, holdpoint.CodeNotAllowedNow)}, beginStep),
		with(route{pattern: step + "finish", id: "finishStep", summary: "Store the end of a step: a result, or a failure.",
			answers: map[int]any{http.StatusOK: stepAnswer{}}, codes: append(workCodes, holdpoint.CodeNotAllowedNow)}, finishStep),
		with(route{pattern: step + "resolve", id: "resolveStep", summary: "Record what became of an uncertain step.",
			answers: map[int]any{http.StatusOK: stepAnswer{}}, codes: moveCodes}, resolveStep),
		with(route{pattern: run + "draft", id: "submitDraft", summary: "Submit a model's output: 200 held; 422 repair or failed.",
			answers: map[int]any{http.StatusOK: engine.DraftAnswer{}, http.StatusUnprocessableEntity: engine.DraftAnswer{}},
			codes:   append(workCodes, holdpoint.CodeInvalidPolicy, holdpoint.CodeNotAllowedNow)}, submitDraft),
		with(route{pattern: run + "fail", id: "failRun", summary: "Report that the work failed; the failure matrix decides what follows.",
			answers: map[int]any{http.StatusOK: runAnswer{}}, codes: append(workCodes, holdpoint.CodeInvalidPolicy)}, failRun),
		with(route{pattern: run + "complete", id: "completeRun", summary: "End a run that needs no effect, with its result.",
			answers: map[int]any{http.StatusOK: runAnswer{}}, codes: append(workCodes, holdpoint.CodeNotAllowedNow)}, completeRun),
	}
}

func renew(c *call, r engine.RenewRequest) (answer, error) {
	l, err := c.engine().Renew(c.ctx, c.actor, c.path("id"), r)
	return ok(leaseAnswer{l}), err
}

func beginStep(c *call, r engine.StepRequest) (answer, error) {
	a, err := c.engine().BeginStep(c.ctx, c.actor, c.path("id"), c.path("name"), r)
	switch a.Outcome {
	case "run":
		return created(beginAnswer{StepAnswer: a}), err
	case "done":
		return ok(beginAnswer{StepAnswer: a}), err
	case "in_progress":
		return answer{status: http.StatusConflict, body: beginAnswer{a, holdpoint.CodeInProgress}, retryAfter: max(1, a.RetryAfter)}, err
	}
	return answer{status: http.StatusConflict, body: beginAnswer{a, holdpoint.CodeUncertain}}, err
}

func finishStep(c *call, r engine.StepEnd) (answer, error) {
	s, err := c.engine().FinishStep(c.ctx, c.actor, c.path("id"), c.path("name"), r)
	return ok(stepAnswer{s}), err
}

func resolveStep(c *call, r engine.StepResolution) (answer, error) {
	s, err := c.engine().ResolveStep(c.ctx, c.actor, c.path("id"), c.path("name"), r)
	return ok(stepAnswer{s}), err
}

func submitDraft(c *call, r engine.DraftRequest) (answer, error) {
	a, err := c.engine().SubmitDraft(c.ctx, c.actor, c.path("id"), r)
	if a.Outcome == "repair" || a.Outcome == "failed" {
		return answer{status: http.StatusUnprocessableEntity, body: a}, err
	}
	return ok(a), err
}

func failRun(c *call, r engine.FailRequest) (answer, error) {
	run, err := c.engine().Fail(c.ctx, c.actor, c.path("id"), r)
	return ok(runAnswer{run}), err
}

func completeRun(c *call, r engine.CompleteRequest) (answer, error) {
	run, err := c.engine().Complete(c.ctx, c.actor, c.path("id"), r)
	return ok(runAnswer{run}), err
}
