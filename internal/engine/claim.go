package engine

import (
	"context"
	"encoding/json"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/internal/payload"
	"github.com/holdpoint/holdpoint/internal/policy"
	"github.com/holdpoint/holdpoint/internal/store"
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
	Owner     string               `json:"owner,omitempty"` // a UUID; a repeat with it answers claimed again
	Lease     *holdpoint.Duration  `json:"lease,omitempty"`
	Trigger   *Trigger             `json:"trigger,omitempty"`
	Initiator string               `json:"initiator,omitempty"`
}

// ClaimedRun is a run with its result, which a duplicate of a completed run is answered with.
type ClaimedRun struct {
	holdpoint.Run
	Result json.RawMessage `json:"result,omitempty"`
}

// ClaimAnswer is the answer to a claim. RetryAfter goes with busy.
type ClaimAnswer struct {
	Outcome       holdpoint.ClaimOutcome `json:"outcome"`
	Run           ClaimedRun             `json:"run"`
	Lease         *holdpoint.Lease       `json:"lease,omitempty"`
	RecoveredFrom string                 `json:"recovered_from,omitempty"`
	RetryAfter    time.Duration          `json:"-"`
}

// Claim claims one business event (R1.3).
func (e *Engine) Claim(ctx context.Context, a holdpoint.Actor, r ClaimRequest) (ClaimAnswer, error) {
	answers, errs := e.ClaimBatch(ctx, a, []ClaimRequest{r})
	return answers[0], errs[0]
}

// ClaimBatch claims several events, each as if it were sent alone; answers and errors are in the order of the requests.
func (e *Engine) ClaimBatch(ctx context.Context, a holdpoint.Actor, requests []ClaimRequest) ([]ClaimAnswer, []error) {
	answers, errs := make([]ClaimAnswer, len(requests)), make([]error, len(requests))
	var claims []store.Claim
	var at []int
	for i, r := range requests {
		c, err := e.prepareClaim(ctx, a, r)
		if err != nil {
			errs[i] = err
			continue
		}
		claims, at = append(claims, c), append(at, i)
	}
	if len(claims) == 0 {
		return answers, errs
	}
	results, failed := e.claimAll(ctx, claims, func(i int) json.RawMessage { return requests[at[i]].Payload })
	for i, n := range at {
		if errs[n] = failed[i]; failed[i] == nil {
			answers[n], errs[n] = e.answer(ctx, results[i])
		}
	}
	return answers, errs
}

// claimAll runs claims through the coalescer. A claim whose run was fingerprinted under another rule is asked again under
// the run's own rule, before anybody calls it a mismatch (R1.2).
func (e *Engine) claimAll(ctx context.Context, claims []store.Claim, body func(int) json.RawMessage) ([]store.ClaimResult, []error) {
	results, errs := e.claims.claim(ctx, claims)
	var again []store.Claim
	var at []int
	for i, r := range results {
		if errs[i] != nil || !r.RuleDiffers {
			continue
		}
		c := claims[i]
		var err error
		if c.Fingerprint, err = payload.Fingerprint(body(i), r.Run.Ignore, e.limits); err != nil {
			errs[i] = err
			continue
		}
		c.FingerprintRule, c.Ignore = payload.RuleHash(r.Run.Ignore), r.Run.Ignore
		again, at = append(again, c), append(at, i)
	}
	if len(again) > 0 {
		second, failed := e.claims.claim(ctx, again)
		for i, n := range at {
			results[n], errs[n] = second[i], failed[i]
		}
	}
	return results, errs
}

// prepareClaim checks a request and makes the row that it proposes.
func (e *Engine) prepareClaim(ctx context.Context, a holdpoint.Actor, r ClaimRequest) (store.Claim, error) {
	var none store.Claim
	if err := permit(a, holdpoint.ActionRunWork); err != nil {
		return none, err
	}
	p, err := e.policies.active(ctx, a.Tenant)
	if err != nil {
		return none, err
	}
	w, err := p.workflow(r.Workflow)
	if err != nil {
		return none, err
	}
	if len(r.Payload) == 0 {
		return none, holdpoint.Errorf(holdpoint.CodeInvalidRequest, "send the business event as payload")
	}
	key, err := identity(r.Key, r.Operation)
	if err != nil {
		return none, err
	}
	c := store.Claim{RunID: newID(), Tenant: a.Tenant, Scope: w.KeyScope, Workflow: w.Name, Key: key, Operation: r.Operation,
		KeyFlag: payload.WeakLooks(key), Ignore: w.Ignore, FingerprintRule: payload.RuleHash(w.Ignore), PolicyHash: p.Hash, Who: who(a)}
	if c.Fingerprint, err = payload.Fingerprint(r.Payload, w.Ignore, e.limits); err != nil {
		return none, err
	}
	if err := e.ownership(ctx, &c, w, r.Owner, r.Lease); err != nil {
		return none, err
	}
	keys, err := e.keys.of(ctx, a.Tenant)
	if err != nil {
		return none, err
	}
	c.KeyHMAC = keys.index.Index("key", key)
	initiator, err := initiatorOf(w, r.Payload, r.Initiator)
	if err != nil {
		return none, err
	}
	b, wrapped, err := e.newBox(a.Tenant, c.RunID)
	if err != nil {
		return none, err
	}
	c.RunKey, c.Payload, c.Initiator = wrapped, b.seal("payload", r.Payload), b.sealText("initiator", initiator)
	if t := r.Trigger; t != nil {
		if t.ResumeURL != "" {
			return none, holdpoint.Errorf(holdpoint.CodeInvalidRequest, "trigger.resume_url needs a callback in the policy, which is not in this version; leave it out and read the run instead")
		}
		c.TriggerSource, c.ExecutionID, c.WorkflowVersion, c.DeliveryID = t.Source, t.ExecutionID, t.WorkflowVersion, t.DeliveryID
		for name, v := range map[string]string{"source": t.Source, "execution_id": t.ExecutionID, "workflow_version": t.WorkflowVersion, "delivery_id": t.DeliveryID} {
			if len(v) > 255 {
				return none, holdpoint.Errorf(holdpoint.CodeInvalidRequest, "trigger.%s is longer than 255 bytes; shorten it", name)
			}
		}
	}
	return c, nil
}

// ownership fills in owner, lease, cap and budgets from the policy and the caller's wishes.
func (e *Engine) ownership(ctx context.Context, c *store.Claim, w *policy.Workflow, owner string, wish *holdpoint.Duration) error {
	c.Owner, c.OwnerExplicit = owner, owner != ""
	if c.OwnerExplicit {
		if _, err := uuid.Parse(owner); err != nil {
			return holdpoint.Errorf(holdpoint.CodeInvalidRequest, "owner must be a UUID that you mint for this claim; leave it out to be given one")
		}
	} else {
		c.Owner = uuid.NewString()
	}
	c.Cap, c.StealCap = w.Lease.Cap, w.Lease.StealCap
	c.AttemptLimit, c.Budget = w.Retry.RunAttempts, w.Retry.RunBudget
	c.Lease = e.leases.of(ctx, e.store, c.Tenant, w)
	if wish != nil {
		c.Lease = time.Duration(*wish)
		if c.Lease < time.Second {
			return holdpoint.Errorf(holdpoint.CodeInvalidRequest, "lease must be at least 1s")
		}
	}
	c.Lease = min(c.Lease, c.Cap)
	return nil
}

// identity gives the key text of a claim from its one of two forms.
func identity(key string, op *holdpoint.Operation) (string, error) {
	switch {
	case key != "" && op != nil:
		return "", holdpoint.Errorf(holdpoint.CodeInvalidKey, "send either key or operation, not both")
	case op != nil:
		return payload.Operation(*op).Key()
	case key == "":
		return "", holdpoint.Errorf(holdpoint.CodeInvalidKey, "send the upstream system's own id as key, or operation {source, record, action, revision}")
	}
	return key, payload.CheckKey(key)
}

// initiatorOf finds who started the business operation, where policy says that it stands; absent, the claim is refused.
func initiatorOf(w *policy.Workflow, body []byte, caller string) (string, error) {
	switch w.Initiator {
	case "":
		return caller, nil
	case policy.InitiatorCaller:
		if caller == "" {
			return "", holdpoint.Errorf(holdpoint.CodeInitiatorMissing, "workflow %s separates duties by the claim's field initiator; send who started the operation", w.Name)
		}
		return caller, nil
	}
	v, ok := textAt(body, w.Initiator)
	if !ok {
		return "", holdpoint.Errorf(holdpoint.CodeInitiatorMissing, "workflow %s separates duties by %s of the payload; send a payload that has it", w.Name, w.Initiator)
	}
	return v, nil
}

// answer completes a store result with the prior result of a completed run.
func (e *Engine) answer(ctx context.Context, r store.ClaimResult) (ClaimAnswer, error) {
	out := ClaimAnswer{Outcome: r.Outcome, Run: ClaimedRun{Run: r.Run}, Lease: r.Lease, RecoveredFrom: r.RecoveredFrom, RetryAfter: r.RetryAfter}
	if r.Outcome == holdpoint.Claimed && r.RecoveredFrom == string(holdpoint.ReasonExpiredLease) {
		e.alertSteal(ctx, r.Run)
	}
	if r.Outcome == holdpoint.Mismatch && r.Run.Mismatches == 1 {
		e.alert(ctx, r.Run, "fingerprint.mismatch")
	}
	if r.Outcome == holdpoint.Duplicate && r.Run.State == holdpoint.RunCompleted {
		rec, err := e.store.Content(ctx, r.Run.Tenant, r.Run.ID)
		if err != nil {
			return out, err
		}
		b, err := e.openBox(r.Run.Tenant, r.Run.ID, rec.RunKey)
		if err != nil {
			return out, err
		}
		if out.Run.Result, err = b.open("result", rec.Result); err != nil {
			return out, err
		}
	}
	return out, nil
}

// ClaimRunRequest claims a run by its id, for an execution that holds the id but not the lease.
type ClaimRunRequest struct {
	ExecutionID string              `json:"execution_id"`
	Owner       string              `json:"owner,omitempty"`
	Fingerprint string              `json:"fingerprint,omitempty"`
	Lease       *holdpoint.Duration `json:"lease,omitempty"`
}

// ClaimRun claims an existing run under the normal rules (R1.4).
func (e *Engine) ClaimRun(ctx context.Context, a holdpoint.Actor, runID string, r ClaimRunRequest) (ClaimAnswer, error) {
	if err := permit(a, holdpoint.ActionRunWork); err != nil {
		return ClaimAnswer{}, err
	}
	if r.ExecutionID == "" || len(r.ExecutionID) > 255 {
		return ClaimAnswer{}, holdpoint.Errorf(holdpoint.CodeInvalidRequest, "send the execution_id that will work on the run, at most 255 bytes")
	}
	rec, err := e.store.Content(ctx, a.Tenant, runID)
	if err != nil {
		return ClaimAnswer{}, err
	}
	p, err := e.policies.active(ctx, a.Tenant)
	if err != nil {
		return ClaimAnswer{}, err
	}
	w, err := p.workflow(rec.Run.Workflow)
	if err != nil {
		return ClaimAnswer{}, err
	}
	run := rec.Run
	keys, err := e.keys.of(ctx, a.Tenant)
	if err != nil {
		return ClaimAnswer{}, err
	}
	c := store.Claim{RunID: run.ID, Tenant: a.Tenant, Scope: run.Scope, Workflow: run.Workflow, Key: run.Key, KeyHMAC: keys.index.Index("key", run.Key),
		KeyFlag: run.KeyFlag, Operation: run.Operation, Fingerprint: run.Fingerprint, FingerprintRule: run.FingerprintRule, Ignore: run.Ignore,
		ExecutionID: r.ExecutionID, PolicyHash: p.Hash, TriggerSource: run.TriggerSource, WorkflowVersion: run.WorkflowVersion,
		DeliveryID: run.DeliveryID, Payload: rec.Payload, Initiator: rec.Initiator, ResumeURL: rec.ResumeURL, RunKey: rec.RunKey, Who: who(a)}
	if r.Fingerprint != "" {
		c.Fingerprint = r.Fingerprint
	}
	if err := e.ownership(ctx, &c, w, r.Owner, r.Lease); err != nil {
		return ClaimAnswer{}, err
	}
	results, errs := e.claims.claim(ctx, []store.Claim{c})
	if errs[0] != nil {
		return ClaimAnswer{}, errs[0]
	}
	return e.answer(ctx, results[0])
}

// leaseSizes remembers, for a minute, how long leases of `auto` workflows should be.
type leaseSizes struct{ known sync.Map } // tenant/workflow → sizedLease

type sizedLease struct {
	size time.Duration
	at   time.Time
}

// The bounds of an automatic lease: p99 of measured durations, doubled, within 10 s and the workflow's cap.
const (
	autoHeadroom = 2
	autoFloor    = 10 * time.Second
	autoSample   = 500
	autoEnough   = 20
)

// of gives the initial lease of a workflow: its fixed length, or for `auto` twice the p99 of measured durations.
func (l *leaseSizes) of(ctx context.Context, s store.Store, tenant string, w *policy.Workflow) time.Duration {
	if !w.Lease.Auto {
		return w.Lease.Initial
	}
	key := tenant + "/" + w.Name
	if v, ok := l.known.Load(key); ok && time.Since(v.(sizedLease).at) < time.Minute {
		return v.(sizedLease).size
	}
	size := w.Lease.Initial
	if measured, err := s.WorkDurations(ctx, tenant, w.Name, autoSample); err == nil && len(measured) >= autoEnough {
		size = max(autoFloor, min(autoHeadroom*percentile(measured, 0.99), w.Lease.Cap))
	}
	l.known.Store(key, sizedLease{size, time.Now()})
	return size
}
