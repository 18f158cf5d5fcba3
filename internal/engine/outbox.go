package engine

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/connector"
	"github.com/holdpoint/holdpoint/internal/policy"
	"github.com/holdpoint/holdpoint/internal/store"
)

// Task is a leased effect that may be sent: its content is opened, its connector is the approved version, and whoever
// released it still has the right to.
type Task struct {
	store.LeasedEffect
	Vars      connector.Vars
	Connector *policy.Connector
	workflow  *policy.Workflow
	wire      string // hash of the request that this attempt sends
}

// LeaseEffects leases due effects for owner and returns those that may be sent. What differs from what was approved is
// held, not sent (I4).
func (e *Engine) LeaseEffects(ctx context.Context, owner string, lease time.Duration, limit int, skip []string) ([]Task, error) {
	leased, err := e.store.LeaseEffects(ctx, store.EffectLease{Owner: owner, For: lease, Limit: limit, Skip: skip, Enabled: e.enabled})
	if err != nil {
		return nil, err
	}
	var tasks []Task
	var back []store.Settlement
	for _, l := range leased {
		t, hold, err := e.task(ctx, l)
		switch {
		case err != nil:
			// Fail closed: what cannot be judged now goes back and is judged again.
			e.log.ErrorContext(ctx, "effect not judged", "effect", l.ID, "run", l.RunID, "error", err)
			back = append(back, release(l.Effect, holdpoint.HoldNone, 5*time.Second))
		case hold != holdpoint.HoldNone:
			back = append(back, release(l.Effect, hold, 0))
		default:
			tasks = append(tasks, t)
		}
	}
	if len(back) > 0 {
		err = e.store.ReleaseEffects(ctx, owner, back)
	}
	return tasks, err
}

// release is a settlement that returns a leased effect to pending before its first byte.
func release(x holdpoint.Effect, hold holdpoint.Hold, next time.Duration) store.Settlement {
	return store.Settlement{Tenant: x.Tenant, RunID: x.RunID, EffectID: x.ID, Version: x.Version, State: holdpoint.EffectPending, Trigger: "retry",
		Hold: hold, PossiblyCommitted: x.PossiblyCommitted, Next: next, Who: system("dispatcher"),
		Outcome: holdpoint.Outcome{Result: holdpoint.Rejected, Phase: holdpoint.PhaseLocal, Class: x.FailureClass}}
}

// GiveBack returns a leased effect that there is no room for; it is due at once.
func (e *Engine) GiveBack(ctx context.Context, owner string, t *Task) error {
	return e.store.ReleaseEffects(ctx, owner, []store.Settlement{release(t.Effect, holdpoint.HoldNone, 0)})
}

// task opens a leased effect and judges whether it may be sent, or under which hold it must wait.
func (e *Engine) task(ctx context.Context, l store.LeasedEffect) (Task, holdpoint.Hold, error) {
	t := Task{LeasedEffect: l}
	p, err := e.policies.version(ctx, l.Tenant, l.Policy)
	if err != nil {
		return t, "", err
	}
	t.Connector, t.workflow = p.Connectors[l.Connector], p.Workflows[l.Workflow]
	if t.Connector == nil || t.workflow == nil || t.Connector.Version != l.ConnectorVersion || len(t.Connector.MissingSecrets(e.secrets)) > 0 {
		return t, holdpoint.HoldConfiguration, nil
	}
	if !authorityStands(p, l) {
		return t, holdpoint.HoldAuthority, nil
	}
	return t, holdpoint.HoldNone, e.openTask(&t)
}

// openTask opens target and payload.
func (e *Engine) openTask(t *Task) error {
	b, err := e.openBox(t.Tenant, t.RunID, t.RunKey)
	if err != nil {
		return err
	}
	target, err := b.open("target:"+t.ID, t.Target)
	if err != nil {
		return err
	}
	body, err := b.open("effect:"+t.ID, t.Payload)
	t.Vars = connector.Vars{Key: t.ProviderKey, Reference: t.Reference, Target: string(target), Payload: body, Slot: t.Slot, Type: t.Type, RunID: t.RunID}
	return err
}

// authorityStands reports whether the person whose decision released an effect still has the right to decide.
func authorityStands(p *loaded, l store.LeasedEffect) bool {
	return l.Decider.ID != "" && !l.Decider.Disabled &&
		slices.ContainsFunc(rolesOf(p, l.Decider), func(r string) bool { return slices.Contains(l.Roles, r) })
}

// facts is what the failure matrix needs to know about an attempt.
func (t *Task) facts(attempts int, first, now time.Time) policy.EffectFacts {
	f := policy.EffectFacts{PossiblyCommitted: t.PossiblyCommitted, Attempts: attempts, FirstAttempt: first, Now: now, Proved: t.KeyLife > 0,
		SameWire: t.WireHash == "" || t.WireHash == t.wire, HasLookup: t.Connector.Lookup != nil, Retry: t.workflow.Retry}
	if f.Proved && !first.IsZero() {
		f.KeyUntil = first.Add(t.KeyLife)
	}
	return f
}

// Begin commits the attempt row of a prepared request, again under the switch. ok is false if it may not be sent: the
// switch went off, the lease is lost, or a repetition is no longer proved; the effect is then where it belongs.
func (e *Engine) Begin(ctx context.Context, owner string, t *Task, wireHash string, sendBefore time.Duration) (store.BegunAttempt, bool, error) {
	t.wire = wireHash
	if t.PossiblyCommitted && t.FirstAttemptAt != nil && !policy.Repeatable(t.facts(t.Spent, *t.FirstAttemptAt, t.Now)) {
		s := release(t.Effect, holdpoint.HoldNone, e.firstLookup(t))
		s.State, s.Trigger, s.Reason = holdpoint.EffectUnknown, "doubt", "key_window_over"
		s.Outcome.Class = holdpoint.ClassKeyWindowOver
		return store.BegunAttempt{}, false, e.store.ReleaseEffects(ctx, owner, []store.Settlement{s})
	}
	begin := store.AttemptBegin{ID: newID(), Tenant: t.Tenant, EffectID: t.ID, RunID: t.RunID, Version: t.Version, WireHash: wireHash, SendBefore: sendBefore}
	if t.KeyLife > 0 {
		first := t.Now
		if t.FirstAttemptAt != nil {
			first = *t.FirstAttemptAt
		}
		begin.ProofUntil = first.Add(t.KeyLife)
	}
	begun, err := e.begin(ctx, owner, begin)
	if err != nil || len(begun) == 0 {
		return store.BegunAttempt{}, false, err
	}
	return begun[0], true, nil
}

// begin asks the store for one attempt, and for the same one again while its answer is lost and there is time to send.
// Without that, an attempt that was committed and never sent would have to be found out about.
func (e *Engine) begin(ctx context.Context, owner string, b store.AttemptBegin) ([]store.BegunAttempt, error) {
	for until, wait := time.Now().Add(b.SendBefore), 20*time.Millisecond; ; wait *= 2 {
		begun, err := e.store.BeginAttempts(ctx, owner, []store.AttemptBegin{b})
		if !errors.Is(err, &holdpoint.Error{Code: holdpoint.CodeUnavailable}) || time.Now().Add(wait).After(until) {
			return begun, err
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil, err
		}
	}
}

// Refuse settles a leased effect whose request could not be made: no attempt was begun and no byte left.
func (e *Engine) Refuse(ctx context.Context, owner string, t *Task, cause error) error {
	out := holdpoint.Outcome{Result: holdpoint.Rejected, Phase: holdpoint.PhaseLocal, Class: holdpoint.ClassInvalidData, Detail: "the request could not be rendered"}
	if errors.Is(cause, &holdpoint.Error{Code: holdpoint.CodeUnavailable}) {
		return e.store.ReleaseEffects(ctx, owner, []store.Settlement{release(t.Effect, holdpoint.HoldConfiguration, 0)})
	}
	s, err := e.settlement(ctx, t, out, t.Spent, t.Now)
	if err != nil {
		return err
	}
	return e.store.ReleaseEffects(ctx, owner, []store.Settlement{s})
}

// Settle records what became of an attempt. It is called with a context that does not end with the caller's: after an
// external accept the answer must reach the store.
func (e *Engine) Settle(ctx context.Context, owner string, t *Task, a store.BegunAttempt, o holdpoint.Outcome) (store.Settled, error) {
	now := a.Now.Add(o.Took)
	if t.FirstAttemptAt == nil {
		t.FirstAttemptAt = &a.BegunAt
	}
	s, err := e.settlement(ctx, t, o, t.Spent+1, now)
	if err != nil {
		return store.Settled{}, err
	}
	s.AttemptID, s.Version = a.ID, a.Version
	if s.State == holdpoint.EffectPending && o.Result == holdpoint.Unclear {
		s.Next = max(s.Next, a.SendBefore.Sub(now)) // a repetition starts only when this request can begin no more
	}
	settled, err := e.store.SettleAttempts(ctx, owner, []store.Settlement{s})
	if err != nil {
		return store.Settled{}, err
	}
	e.alertEnd(ctx, settled[0])
	return settled[0], nil
}

// settlement applies the failure matrix to an outcome.
func (e *Engine) settlement(ctx context.Context, t *Task, o holdpoint.Outcome, attempts int, now time.Time) (store.Settlement, error) {
	first := time.Time{}
	if t.FirstAttemptAt != nil {
		first = *t.FirstAttemptAt
	}
	v := policy.DecideEffect(o, t.facts(attempts, first, now), e.rand)
	o.Class = v.Class
	s := store.Settlement{Tenant: t.Tenant, RunID: t.RunID, EffectID: t.ID, Version: t.Version, Outcome: o, State: v.State, Trigger: v.Trigger,
		Hold: v.Hold, PossiblyCommitted: v.PossiblyCommitted, Spend: v.SpendsAttempt, Next: v.NextAttempt, Who: system("dispatcher")}
	if v.Exhausted {
		s.Reason = "budget"
	}
	typ := ""
	switch {
	case v.State == holdpoint.EffectUnknown:
		s.Next, typ = e.firstLookup(t), "effect.unknown"
	case v.HoldConnector:
		typ = "connector.held"
		s.Connector = &store.ConnectorHold{Tenant: t.Tenant, Connector: t.LeasedEffect.Connector, Hold: v.Hold, Detail: o.Detail}
		if v.Hold == holdpoint.HoldPermission {
			s.Connector.Type = t.Type
		}
		if v.NextAttempt > 0 {
			s.Connector.Until = now.Add(v.NextAttempt)
		}
	}
	if typ != "" {
		m, err := e.effectAlert(ctx, holdpoint.Run{ID: t.RunID, Tenant: t.Tenant, Workflow: t.Workflow}, t.workflow, typ, t.ID)
		if err != nil {
			return s, err
		}
		s.Messages = m
	}
	return s, nil
}

// alertEnd tells the alert channels about a run that its effects have ended without success.
func (e *Engine) alertEnd(ctx context.Context, s store.Settled) {
	if s.RunEnded && s.Run.State == holdpoint.RunFailedTerminal {
		e.alert(ctx, s.Run, "run.failed")
	}
}

// firstLookup is the delay of the first look-up of an effect that became unknown; negative if nothing can look.
func (e *Engine) firstLookup(t *Task) time.Duration {
	if t.Connector.Lookup == nil {
		return -1
	}
	return t.Connector.Lookup.Settle[0]
}

// LongestTimeout is the longest exchange that any active policy allows. A lease must outlast it.
func (e *Engine) LongestTimeout(ctx context.Context) (time.Duration, error) {
	p := e.policies
	p.mu.Lock()
	known, moves := p.longest, p.moves
	p.mu.Unlock()
	if time.Since(known.read) <= pointerAge {
		return known.timeout, nil
	}
	known = longest{read: time.Now()}
	tenants, err := e.store.ListTenants(ctx)
	if err != nil {
		return 0, err
	}
	for _, t := range tenants {
		active, err := e.activeOrNil(ctx, t.Name)
		if err != nil {
			return 0, err
		}
		if active == nil {
			continue
		}
		for _, c := range active.Connectors {
			known.timeout = max(known.timeout, c.Timeout)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.moves == moves {
		p.longest = known
	}
	return known.timeout, nil
}

// RecoverEffects finds what a dead or paused dispatcher left: an open attempt makes its effect unknown.
func (e *Engine) RecoverEffects(ctx context.Context, limit int) ([]store.Settled, error) {
	settled, err := e.store.RecoverEffects(ctx, limit)
	for _, s := range settled {
		if s.Effect.State == holdpoint.EffectUnknown {
			e.alert(ctx, holdpoint.Run{ID: s.Effect.RunID, Tenant: s.Effect.Tenant, Workflow: s.Effect.Workflow}, "effect.unknown")
		}
	}
	return settled, err
}

// CloseExpired ends effects that have waited for re-authorisation longer than their workflow keeps them.
func (e *Engine) CloseExpired(ctx context.Context, limit int) error {
	tenants, err := e.store.ListTenants(ctx)
	if err != nil {
		return err
	}
	for _, t := range tenants {
		p, err := e.activeOrNil(ctx, t.Name)
		if err != nil {
			return err
		}
		if p == nil {
			continue
		}
		keep := map[string]time.Duration{}
		for name, w := range p.Workflows {
			keep[name] = w.ExpiredKeep
		}
		if _, err := e.store.CloseExpired(ctx, t.Name, keep, limit); err != nil {
			return err
		}
	}
	return nil
}

// ConnectorName is the name of the connector that sends or looks up the effect.
func (t *Task) ConnectorName() string { return t.LeasedEffect.Connector }
