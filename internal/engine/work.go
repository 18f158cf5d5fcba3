package engine

import (
	"context"
	"encoding/json"
	"math"
	"slices"
	"time"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/internal/payload"
	"github.com/holdpoint/holdpoint/internal/policy"
	"github.com/holdpoint/holdpoint/internal/store"
)

// Work is what every work call names: the lease by owner and version, and the execution that it was bound to.
type Work struct {
	Owner       string `json:"owner"`
	Version     int64  `json:"version"`
	ExecutionID string `json:"execution_id,omitempty"`
}

// fence checks the caller's right to work and names the call, so that an identical repetition is known.
func (e *Engine) fence(a holdpoint.Actor, runID string, w Work, call string, body any) (store.Fence, error) {
	f := store.Fence{Tenant: a.Tenant, RunID: runID, Owner: w.Owner, Version: w.Version, ExecutionID: w.ExecutionID}
	if err := permit(a, holdpoint.ActionRunWork); err != nil {
		return f, err
	}
	if w.Owner == "" || w.Version == 0 {
		return f, holdpoint.Errorf(holdpoint.CodeInvalidRequest, "send owner and version of the lease that your claim answered")
	}
	b, err := json.Marshal(struct {
		Call string
		Work Work
		Body any
	}{call, w, body})
	if err != nil {
		return f, err
	}
	f.Call = payload.Hash(b)
	return f, nil
}

// RenewRequest extends a lease from now, by the workflow's initial length if Extend is not given.
type RenewRequest struct {
	Work
	Extend *holdpoint.Duration `json:"extend,omitempty"`
}

// Renew extends a lease, never past its cap; the version stays.
func (e *Engine) Renew(ctx context.Context, a holdpoint.Actor, runID string, r RenewRequest) (holdpoint.Lease, error) {
	f, err := e.fence(a, runID, r.Work, "renew", nil)
	if err != nil {
		return holdpoint.Lease{}, err
	}
	extend := time.Duration(0)
	if r.Extend != nil {
		if extend = time.Duration(*r.Extend); extend < time.Second {
			return holdpoint.Lease{}, holdpoint.Errorf(holdpoint.CodeInvalidRequest, "extend must be at least 1s")
		}
	} else {
		_, _, w, err := e.runPolicy(ctx, a.Tenant, runID)
		if err != nil {
			return holdpoint.Lease{}, err
		}
		extend = e.leases.of(ctx, e.store, a.Tenant, w)
	}
	return e.store.RenewLease(ctx, f, extend)
}

// runPolicy reads a run with the policy and workflow that it is judged under.
func (e *Engine) runPolicy(ctx context.Context, tenant, runID string) (store.Record, *loaded, *policy.Workflow, error) {
	rec, err := e.store.Content(ctx, tenant, runID)
	if err != nil {
		return rec, nil, nil, err
	}
	p, err := e.policies.version(ctx, tenant, rec.Run.PolicyHash)
	if err != nil {
		return rec, nil, nil, err
	}
	w, err := p.workflow(rec.Run.Workflow)
	return rec, p, w, err
}

// StepRequest begins a step. SideEffect declares a write of the workflow's own, which Holdpoint does not govern.
type StepRequest struct {
	Work
	SideEffect bool   `json:"side_effect,omitempty"`
	InputHash  string `json:"input_hash,omitempty"`
}

// StepAnswer says whether the step is to be run. RetryAfter goes with in_progress.
type StepAnswer struct {
	Outcome    string          `json:"outcome"` // run, done, in_progress, uncertain
	Step       holdpoint.Step  `json:"step"`
	Result     json.RawMessage `json:"result,omitempty"`
	RetryAfter time.Duration   `json:"-"`
}

// BeginStep asks whether a step is to be run (R1.6).
func (e *Engine) BeginStep(ctx context.Context, a holdpoint.Actor, runID, name string, r StepRequest) (StepAnswer, error) {
	f, err := e.fence(a, runID, r.Work, "begin:"+name, nil)
	if err != nil {
		return StepAnswer{}, err
	}
	if len(name) > 128 || len(r.InputHash) > 128 {
		return StepAnswer{}, holdpoint.Errorf(holdpoint.CodeInvalidRequest, "a step's name and input_hash have at most 128 bytes")
	}
	res, err := e.store.BeginStep(ctx, f, store.StepBegin{Name: name, SideEffect: r.SideEffect, InputHash: r.InputHash, Who: who(a)})
	if err != nil {
		return StepAnswer{}, err
	}
	out := StepAnswer{Outcome: res.Outcome, Step: res.Step, RetryAfter: res.RetryAfter}
	if res.Result != nil {
		b, err := e.boxOf(ctx, a.Tenant, runID)
		if err != nil {
			return out, err
		}
		out.Result, err = b.open("step:"+name, res.Result)
		return out, err
	}
	return out, nil
}

func (e *Engine) boxOf(ctx context.Context, tenant, runID string) (box, error) {
	rec, err := e.store.Content(ctx, tenant, runID)
	if err != nil {
		return box{}, err
	}
	return e.openBox(tenant, runID, rec.RunKey)
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

// FinishStep stores a step's end under the lease that began it.
func (e *Engine) FinishStep(ctx context.Context, a holdpoint.Actor, runID, name string, r StepEnd) (holdpoint.Step, error) {
	f, err := e.fence(a, runID, r.Work, "finish:"+name, r)
	if err != nil {
		return holdpoint.Step{}, err
	}
	b, err := e.boxOf(ctx, a.Tenant, runID)
	if err != nil {
		return holdpoint.Step{}, err
	}
	end := store.StepFinish{Name: name, Who: who(a)}
	if r.Failed != nil {
		if end.Class, err = knownClass(r.Failed.Class); err != nil {
			return holdpoint.Step{}, err
		}
		return e.store.FinishStep(ctx, f, end)
	}
	if len(r.Result) == 0 {
		r.Result = json.RawMessage("null")
	}
	if err := payload.Check(r.Result, e.limits); err != nil {
		return holdpoint.Step{}, err
	}
	end.Result, end.ResultHash = b.seal("step:"+name, r.Result), payload.Hash(r.Result)
	return e.store.FinishStep(ctx, f, end)
}

// StepResolution is a person's word about an uncertain step.
type StepResolution struct {
	Verdict string          `json:"verdict"` // done or not_done
	Result  json.RawMessage `json:"result,omitempty"`
	Reason  string          `json:"reason"`
}

// ResolveStep records what became of an uncertain step.
func (e *Engine) ResolveStep(ctx context.Context, a holdpoint.Actor, runID, name string, r StepResolution) (holdpoint.Step, error) {
	if err := permit(a, holdpoint.ActionStepResolve); err != nil {
		return holdpoint.Step{}, err
	}
	if r.Verdict != "done" && r.Verdict != "not_done" {
		return holdpoint.Step{}, holdpoint.Errorf(holdpoint.CodeInvalidRequest, "verdict is done or not_done")
	}
	b, err := e.boxOf(ctx, a.Tenant, runID)
	if err != nil {
		return holdpoint.Step{}, err
	}
	reason, err := reasonText(b, "step-reason:"+name, r.Reason)
	if err != nil {
		return holdpoint.Step{}, err
	}
	res := store.StepResolve{Tenant: a.Tenant, RunID: runID, Name: name, Done: r.Verdict == "done", ReasonText: reason, Who: who(a)}
	if res.Done {
		if len(r.Result) == 0 {
			r.Result = json.RawMessage("null")
		}
		if err := payload.Check(r.Result, e.limits); err != nil {
			return holdpoint.Step{}, err
		}
		res.Result, res.ResultHash = b.seal("step:"+name, r.Result), payload.Hash(r.Result)
	}
	return e.store.ResolveStep(ctx, res)
}

// FailRequest reports that the work failed, in the words of the failure matrix.
type FailRequest struct {
	Work
	Failure
	RetryAfter *holdpoint.Duration `json:"retry_after,omitempty"`
}

// Fail ends the caller's work on a run as the matrix and the policy's budgets decide.
func (e *Engine) Fail(ctx context.Context, a holdpoint.Actor, runID string, r FailRequest) (holdpoint.Run, error) {
	f, err := e.fence(a, runID, r.Work, "fail", r)
	if err != nil {
		return holdpoint.Run{}, err
	}
	class, err := knownClass(r.Class)
	if err != nil {
		return holdpoint.Run{}, err
	}
	rec, _, w, err := e.runPolicy(ctx, a.Tenant, runID)
	if err != nil {
		return holdpoint.Run{}, err
	}
	b, err := e.openBox(a.Tenant, runID, rec.RunKey)
	if err != nil {
		return holdpoint.Run{}, err
	}
	after := time.Duration(0)
	if r.RetryAfter != nil {
		after = max(0, time.Duration(*r.RetryAfter))
	}
	spent := time.Duration(0)
	if rec.Run.BudgetUntil != nil {
		spent = w.Retry.RunBudget - rec.Run.BudgetUntil.Sub(rec.Now)
	}
	state, reason, delay := policy.DecideRun(class, rec.Run.Attempts, spent, w.Retry, after, e.rand)
	if state == holdpoint.RunAwaitingHuman {
		// A refusal or soft failure goes to a person only as a draft; reported by fail there is nothing to show.
		state, reason = holdpoint.RunFailedTerminal, holdpoint.ReasonRefusedOutput
	}
	end := store.WorkEnd{State: state, Reason: reason, Class: class, RetryIn: delay, Text: b.sealText("failure", r.Message), Who: who(a)}
	if state == holdpoint.RunFailedTerminal {
		if end.Messages, err = e.alertMessages(ctx, rec.Run, w, "run.failed"); err != nil {
			return holdpoint.Run{}, err
		}
	}
	return e.store.EndWork(ctx, f, end)
}

// CompleteRequest ends a run that needs no effect.
type CompleteRequest struct {
	Work
	Result json.RawMessage `json:"result,omitempty"`
}

// Complete ends a run with a result, where no effect is open.
func (e *Engine) Complete(ctx context.Context, a holdpoint.Actor, runID string, r CompleteRequest) (holdpoint.Run, error) {
	f, err := e.fence(a, runID, r.Work, "complete", r)
	if err != nil {
		return holdpoint.Run{}, err
	}
	b, err := e.boxOf(ctx, a.Tenant, runID)
	if err != nil {
		return holdpoint.Run{}, err
	}
	if len(r.Result) > 0 {
		if err := payload.Check(r.Result, e.limits); err != nil {
			return holdpoint.Run{}, err
		}
	}
	return e.store.EndWork(ctx, f, store.WorkEnd{State: holdpoint.RunCompleted, Result: b.seal("result", r.Result), Who: who(a)})
}

// knownClass refuses a failure class that the matrix does not have.
func knownClass(c holdpoint.FailureClass) (holdpoint.FailureClass, error) {
	if slices.ContainsFunc(policy.Matrix, func(r policy.MatrixRow) bool { return r.Class == c }) {
		return c, nil
	}
	return c, holdpoint.Errorf(holdpoint.CodeInvalidRequest, "class must be one of the failure matrix; print it with holdpoint policy matrix")
}

// reasonText seals a reason that must be given.
func reasonText(b box, label, reason string) ([]byte, error) {
	if reason == "" {
		return nil, holdpoint.Errorf(holdpoint.CodeReasonRequired, "say why in reason; it is kept with the evidence")
	}
	if len(reason) > 4096 {
		return nil, holdpoint.Errorf(holdpoint.CodeInvalidRequest, "reason has at most 4096 bytes")
	}
	return b.sealText(label, reason), nil
}

// percentile gives the smallest value that at least share of all values do not exceed.
func percentile(all []time.Duration, share float64) time.Duration {
	sorted := slices.Clone(all)
	slices.Sort(sorted)
	return sorted[max(0, int(math.Ceil(share*float64(len(sorted))))-1)]
}
