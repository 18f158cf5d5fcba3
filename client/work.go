package client

import (
	"context"
	"encoding/json"
	"net/http"
	"time"

	"github.com/holdpoint/holdpoint"
)

// Trigger says where a delivery came from.
type Trigger struct {
	Source          string `json:"source,omitempty"`
	ExecutionID     string `json:"execution_id,omitempty"`
	WorkflowVersion string `json:"workflow_version,omitempty"`
	DeliveryID      string `json:"delivery_id,omitempty"`
	ResumeURL       string `json:"resume_url,omitempty"`
}

// ClaimRequest asks to become the only worker of one business event. Key or Operation names it.
type ClaimRequest struct {
	Workflow  string               `json:"workflow"`
	Key       string               `json:"key,omitempty"`
	Operation *holdpoint.Operation `json:"operation,omitempty"`
	Payload   json.RawMessage      `json:"payload"`
	Owner     string               `json:"owner,omitempty"` // a UUID of the caller's; a repeat with it answers claimed again
	Lease     *holdpoint.Duration  `json:"lease,omitempty"`
	Trigger   *Trigger             `json:"trigger,omitempty"`
	Initiator string               `json:"initiator,omitempty"`
}

// ClaimedRun is a run, with its result where a duplicate of a completed run was claimed.
type ClaimedRun struct {
	holdpoint.Run
	Result json.RawMessage `json:"result,omitempty"`
}

// Claim is the answer to a claim. All four outcomes are answers, not errors; RetryAfter goes with busy.
type Claim struct {
	Outcome       holdpoint.ClaimOutcome `json:"outcome"`
	Run           ClaimedRun             `json:"run"`
	Lease         *holdpoint.Lease       `json:"lease,omitempty"`
	RecoveredFrom string                 `json:"recovered_from,omitempty"`
	RetryAfter    time.Duration          `json:"-"`
}

// Claim claims one business event.
func (c *Client) Claim(ctx context.Context, r ClaimRequest) (Claim, error) {
	return c.claim(ctx, "/v1/claims", r)
}

func (c *Client) claim(ctx context.Context, path string, body any) (Claim, error) {
	a, resp, err := exchange[Claim](ctx, c, http.MethodPost, path, nil, body)
	a.RetryAfter = resp.retryAfter
	return a, err
}

// BatchResult is what one claim of a batch was answered: a Claim, or Err.
type BatchResult struct {
	Claim
	Err error
}

// ClaimBatch claims up to 500 business events, each as if it were sent alone, and answers in their order.
func (c *Client) ClaimBatch(ctx context.Context, claims []ClaimRequest) ([]BatchResult, error) {
	type result struct {
		Status        int                    `json:"status"`
		Outcome       holdpoint.ClaimOutcome `json:"outcome"`
		Run           ClaimedRun             `json:"run"`
		Lease         *holdpoint.Lease       `json:"lease"`
		RecoveredFrom string                 `json:"recovered_from"`
		RetryAfter    int                    `json:"retry_after"`
		Problem       json.RawMessage        `json:"problem"`
	}
	a, err := call[struct {
		Results []result `json:"results"`
	}](ctx, c, http.MethodPost, "/v1/claims/batch", nil, map[string]any{"claims": claims})
	out := make([]BatchResult, len(a.Results))
	for i, r := range a.Results {
		out[i].Claim = Claim{r.Outcome, r.Run, r.Lease, r.RecoveredFrom, time.Duration(r.RetryAfter) * time.Second}
		if len(r.Problem) > 0 {
			out[i].Err = problem(response{status: r.Status, body: r.Problem})
		}
	}
	return out, err
}

// ClaimRunRequest claims a run by its id, for an execution that holds the id but not the lease.
type ClaimRunRequest struct {
	ExecutionID string              `json:"execution_id"`
	Owner       string              `json:"owner,omitempty"`
	Fingerprint string              `json:"fingerprint,omitempty"`
	Lease       *holdpoint.Duration `json:"lease,omitempty"`
}

// ClaimRun claims an existing run under the normal rules.
func (c *Client) ClaimRun(ctx context.Context, runID string, r ClaimRunRequest) (Claim, error) {
	return c.claim(ctx, at("/v1/runs/", runID, "/claim"), r)
}

// Work is what every work call names: owner and version of the lease, and the execution that it is bound to.
type Work struct {
	Owner       string `json:"owner"`
	Version     int64  `json:"version"`
	ExecutionID string `json:"execution_id,omitempty"`
}

// Renew extends a lease from now, by the workflow's initial length if extend is 0.
func (c *Client) Renew(ctx context.Context, runID string, w Work, extend time.Duration) (holdpoint.Lease, error) {
	type request struct {
		Work
		Extend *holdpoint.Duration `json:"extend,omitempty"`
	}
	r := request{Work: w}
	if d := holdpoint.Duration(extend); d != 0 {
		r.Extend = &d
	}
	a, err := call[struct{ Lease holdpoint.Lease }](ctx, c, http.MethodPost, at("/v1/runs/", runID, "/renew"), nil, r)
	return a.Lease, err
}

// StepRequest begins a step. SideEffect declares a write of the workflow's own, which Holdpoint does not govern.
type StepRequest struct {
	Work
	SideEffect bool   `json:"side_effect,omitempty"`
	InputHash  string `json:"input_hash,omitempty"`
}

// StepAnswer says what to do with a step. All four outcomes (run, done, in_progress, uncertain) are answers, not errors.
type StepAnswer struct {
	Outcome    string          `json:"outcome"`
	Step       holdpoint.Step  `json:"step"`
	Result     json.RawMessage `json:"result,omitempty"` // of done
	Code       holdpoint.Code  `json:"code,omitempty"`   // of in_progress and uncertain
	RetryAfter time.Duration   `json:"-"`                // of in_progress
}

// BeginStep asks whether a step is to be run.
func (c *Client) BeginStep(ctx context.Context, runID, name string, r StepRequest) (StepAnswer, error) {
	a, resp, err := exchange[StepAnswer](ctx, c, http.MethodPost, at("/v1/runs/", runID, "/steps/", name, "/begin"), nil, r)
	a.RetryAfter = resp.retryAfter
	return a, err
}

// Failure is a failed step or run in the words of the failure matrix.
type Failure struct {
	Class   holdpoint.FailureClass `json:"class"`
	Message string                 `json:"message,omitempty"`
}

// StepEnd completes a step with a result, or fails it.
type StepEnd struct {
	Work
	Result json.RawMessage `json:"result,omitempty"`
	Failed *Failure        `json:"failed,omitempty"`
}

// FinishStep stores the end of a step.
func (c *Client) FinishStep(ctx context.Context, runID, name string, r StepEnd) (holdpoint.Step, error) {
	return c.step(ctx, runID, name, "/finish", r)
}

// StepResolution is a person's word about an uncertain step; Verdict is done or not_done.
type StepResolution struct {
	Verdict string          `json:"verdict"`
	Result  json.RawMessage `json:"result,omitempty"`
	Reason  string          `json:"reason"`
}

// ResolveStep records what became of an uncertain step.
func (c *Client) ResolveStep(ctx context.Context, runID, name string, r StepResolution) (holdpoint.Step, error) {
	return c.step(ctx, runID, name, "/resolve", r)
}

func (c *Client) step(ctx context.Context, runID, name, verb string, body any) (holdpoint.Step, error) {
	a, err := call[struct{ Step holdpoint.Step }](ctx, c, http.MethodPost, at("/v1/runs/", runID, "/steps/", name, verb), nil, body)
	return a.Step, err
}

// DraftRequest submits a model's output: a JSON object, or a JSON string with the raw text of the model.
type DraftRequest struct {
	Work
	Output    json.RawMessage `json:"output"`
	Model     holdpoint.Model `json:"model"`
	SourceURL string          `json:"source_url,omitempty"`
}

// Fault is one reason why an output is not a draft.
type Fault struct {
	Pointer string `json:"pointer"`
	Code    string `json:"code"`
	Message string `json:"message"`
}

// Draft says what became of a draft: held, repair or failed. All are answers, not errors.
type Draft struct {
	Outcome      string        `json:"outcome"`
	Run          holdpoint.Run `json:"run"`
	Approval     *Approval     `json:"approval,omitempty"`
	Errors       []Fault       `json:"errors,omitempty"`
	RepairsLeft  *int          `json:"repairs_left,omitempty"`
	RepairPrompt string        `json:"repair_prompt,omitempty"`
}

// SubmitDraft submits a model's output.
func (c *Client) SubmitDraft(ctx context.Context, runID string, r DraftRequest) (Draft, error) {
	return call[Draft](ctx, c, http.MethodPost, at("/v1/runs/", runID, "/draft"), nil, r)
}

// FailRequest reports that the work failed.
type FailRequest struct {
	Work
	Failure
	RetryAfter *holdpoint.Duration `json:"retry_after,omitempty"`
}

// Fail ends the work as the failure matrix decides, and gives the run's new state.
func (c *Client) Fail(ctx context.Context, runID string, r FailRequest) (holdpoint.Run, error) {
	return c.run(ctx, runID, "/fail", r)
}

// Complete ends a run that needs no effect; result may be nil.
func (c *Client) Complete(ctx context.Context, runID string, w Work, result json.RawMessage) (holdpoint.Run, error) {
	return c.run(ctx, runID, "/complete", struct {
		Work
		Result json.RawMessage `json:"result,omitempty"`
	}{w, result})
}

// CancelRun ends a run that waits.
func (c *Client) CancelRun(ctx context.Context, runID, reason string) (holdpoint.Run, error) {
	return c.run(ctx, runID, "/cancel", because{reason})
}

func (c *Client) run(ctx context.Context, runID, verb string, body any) (holdpoint.Run, error) {
	a, err := call[struct{ Run holdpoint.Run }](ctx, c, http.MethodPost, at("/v1/runs/", runID, verb), nil, body)
	return a.Run, err
}

// because is the body of calls that need a reason.
type because struct {
	Reason string `json:"reason"`
}

// ReplaceRequest links a correction, under its own upstream-issued key, to the run that it corrects.
type ReplaceRequest struct {
	Key       string               `json:"key,omitempty"`
	Operation *holdpoint.Operation `json:"operation,omitempty"`
	Payload   json.RawMessage      `json:"payload"`
	Initiator string               `json:"initiator,omitempty"`
	Reason    string               `json:"reason"`
}

// Replacement is the new run and the one that it replaces.
type Replacement struct {
	Run      holdpoint.Run `json:"run"`
	Replaced holdpoint.Run `json:"replaced"`
	Created  bool          `json:"created"` // false: the key had a run already, which was linked
}

// Replace makes or links the run that corrects another one.
func (c *Client) Replace(ctx context.Context, runID string, r ReplaceRequest) (Replacement, error) {
	return call[Replacement](ctx, c, http.MethodPost, at("/v1/runs/", runID, "/replace"), nil, r)
}
