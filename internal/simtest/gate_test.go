package simtest

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/internal/store"
)

// turnstile is where everything that could be seen from outside waits for the driver.
type turnstile struct {
	mu      sync.Mutex
	waiting []*waiter
	arrived chan struct{} // capacity one
}

// waiter is one write or request that has not been let on.
type waiter struct {
	p    *process
	verb string // what it is about to do
	id   string // to whom, to tell two of the same verb apart
	go_  chan fate
	held time.Time // not before
}

// fate is what becomes of one write or request.
type fate string

// The fates. A process that dies has done nothing before, or all of it after, and hears nothing.
const (
	passes     fate = "passes"
	fails      fate = "fails"            // nothing happened, and the caller is told so
	loses      fate = "loses its answer" // it happened, and the caller is told that it may not have
	diesBefore fate = "dies before"      // the process dies, and nothing happened
	diesAfter  fate = "dies after"       // it happened, and the process dies before it knows
	holds      fate = "is held up"       // it waits, perhaps past its lease
	sleeps     fate = "finds nothing"
	isDead     fate = "belongs to the dead" // the process died while it waited
)

var errFault = errors.New("simulated fault")

// pass waits at the turnstile.
func (p *process) pass(verb, id string) fate {
	if p.dead.Load() {
		return isDead
	}
	t := p.turnstile
	x := &waiter{p: p, verb: verb, id: id, go_: make(chan fate, 1)}
	t.mu.Lock()
	t.waiting = append(t.waiting, x)
	t.mu.Unlock()
	select {
	case t.arrived <- struct{}{}:
	default:
	}
	return <-x.go_
}

// list gives those that wait, in an order that a replay gives again: by what they are about to do and to whom.
func (t *turnstile) list() []*waiter {
	t.mu.Lock()
	defer t.mu.Unlock()
	slices.SortFunc(t.waiting, func(a, b *waiter) int { return cmp.Or(cmp.Compare(a.verb, b.verb), cmp.Compare(a.id, b.id)) })
	return slices.Clone(t.waiting)
}

// let lets a waiter go with its fate.
func (t *turnstile) let(x *waiter, f fate) {
	t.mu.Lock()
	t.waiting = slices.DeleteFunc(t.waiting, func(y *waiter) bool { return y == x })
	t.mu.Unlock()
	x.go_ <- f
}

// gate is the store as one process sees it: every verb that writes passes the turnstile.
type gate struct {
	store.Store
	p *process
}

func unanswered(verb string) error {
	return holdpoint.Errorf(holdpoint.CodeUnavailable, "the store did not answer %s; repeat the call", verb).Wrap(errFault)
}

// one and two pass a verb with one or two results beside its error.
func one[A any](g *gate, verb, id string, run func() (A, error)) (A, error) {
	a, _, err := two(g, verb, id, func() (A, struct{}, error) { a, err := run(); return a, struct{}{}, err })
	return a, err
}

func two[A, B any](g *gate, verb, id string, run func() (A, B, error)) (a A, b B, err error) {
	f := g.p.pass(verb, id)
	switch f {
	case sleeps:
		return a, b, nil
	case passes, loses, diesAfter:
		ra, rb, err := run()
		if f == passes {
			return ra, rb, err
		}
	}
	if f == diesBefore || f == diesAfter {
		g.p.dead.Store(true)
	}
	return a, b, unanswered(verb)
}

func none(g *gate, verb, id string, run func() error) error {
	_, err := one(g, verb, id, func() (struct{}, error) { return struct{}{}, run() })
	return err
}

// first names a batch by its smallest member: the order inside a batch is not the driver's.
func first[E any](list []E, id func(E) string) string {
	least := ""
	for i, e := range list {
		if v := id(e); i == 0 || v < least {
			least = v
		}
	}
	return least
}

func (g *gate) ClaimRuns(ctx context.Context, c []store.Claim) ([]store.ClaimResult, error) {
	return one(g, "ClaimRuns", first(c, func(c store.Claim) string { return c.Key }), func() ([]store.ClaimResult, error) { return g.Store.ClaimRuns(ctx, c) })
}

func (g *gate) RenewLease(ctx context.Context, f store.Fence, d time.Duration) (holdpoint.Lease, error) {
	return one(g, "RenewLease", f.RunID, func() (holdpoint.Lease, error) { return g.Store.RenewLease(ctx, f, d) })
}

func (g *gate) BeginStep(ctx context.Context, f store.Fence, s store.StepBegin) (store.StepResult, error) {
	return one(g, "BeginStep", f.RunID, func() (store.StepResult, error) { return g.Store.BeginStep(ctx, f, s) })
}

func (g *gate) FinishStep(ctx context.Context, f store.Fence, s store.StepFinish) (holdpoint.Step, error) {
	return one(g, "FinishStep", f.RunID, func() (holdpoint.Step, error) { return g.Store.FinishStep(ctx, f, s) })
}

func (g *gate) ResolveStep(ctx context.Context, r store.StepResolve) (holdpoint.Step, error) {
	return one(g, "ResolveStep", r.RunID, func() (holdpoint.Step, error) { return g.Store.ResolveStep(ctx, r) })
}

func (g *gate) RejectDraft(ctx context.Context, f store.Fence, r store.DraftRejection) (holdpoint.Run, error) {
	return one(g, "RejectDraft", f.RunID, func() (holdpoint.Run, error) { return g.Store.RejectDraft(ctx, f, r) })
}

func (g *gate) HoldDraft(ctx context.Context, d store.Draft) (holdpoint.Run, holdpoint.Approval, error) {
	return two(g, "HoldDraft", d.Fence.RunID, func() (holdpoint.Run, holdpoint.Approval, error) { return g.Store.HoldDraft(ctx, d) })
}

func (g *gate) EndWork(ctx context.Context, f store.Fence, e store.WorkEnd) (holdpoint.Run, error) {
	return one(g, "EndWork", f.RunID, func() (holdpoint.Run, error) { return g.Store.EndWork(ctx, f, e) })
}

func (g *gate) ReplaceRun(ctx context.Context, r store.Replacement) (before, after holdpoint.Run, created bool, err error) {
	type runs struct{ before, after holdpoint.Run }
	both, created, err := two(g, "ReplaceRun", r.OldRunID, func() (runs, bool, error) {
		b, a, created, err := g.Store.ReplaceRun(ctx, r)
		return runs{b, a}, created, err
	})
	return both.before, both.after, created, err
}

func (g *gate) CancelRun(ctx context.Context, tenant, run string, reason []byte, who holdpoint.Who) (holdpoint.Run, error) {
	return one(g, "CancelRun", run, func() (holdpoint.Run, error) { return g.Store.CancelRun(ctx, tenant, run, reason, who) })
}

func (g *gate) SweepRuns(ctx context.Context, limit int) ([]store.Swept, error) {
	return one(g, "SweepRuns", "", func() ([]store.Swept, error) { return g.Store.SweepRuns(ctx, limit) })
}

func (g *gate) Decide(ctx context.Context, d store.Decision) (store.DecisionResult, error) {
	return one(g, "Decide", d.ApprovalID+d.Person.Email, func() (store.DecisionResult, error) { return g.Store.Decide(ctx, d) })
}

func (g *gate) WithdrawApproval(ctx context.Context, tenant, id string, reason []byte, who holdpoint.Who) (store.DecisionResult, error) {
	return one(g, "WithdrawApproval", id, func() (store.DecisionResult, error) { return g.Store.WithdrawApproval(ctx, tenant, id, reason, who) })
}

func (g *gate) LeaseEffects(ctx context.Context, l store.EffectLease) ([]store.LeasedEffect, error) {
	return one(g, "LeaseEffects", "", func() ([]store.LeasedEffect, error) { return g.Store.LeaseEffects(ctx, l) })
}

func (g *gate) BeginAttempts(ctx context.Context, owner string, a []store.AttemptBegin) ([]store.BegunAttempt, error) {
	return one(g, "BeginAttempts", first(a, func(a store.AttemptBegin) string { return a.EffectID }), func() ([]store.BegunAttempt, error) {
		return g.Store.BeginAttempts(ctx, owner, a)
	})
}

func (g *gate) ReleaseEffects(ctx context.Context, owner string, r []store.Settlement) error {
	return none(g, "ReleaseEffects", first(r, settles), func() error { return g.Store.ReleaseEffects(ctx, owner, r) })
}

func settles(s store.Settlement) string { return s.EffectID }

func (g *gate) SettleAttempts(ctx context.Context, owner string, s []store.Settlement) ([]store.Settled, error) {
	return one(g, "SettleAttempts", first(s, settles), func() ([]store.Settled, error) { return g.Store.SettleAttempts(ctx, owner, s) })
}

func (g *gate) RecoverEffects(ctx context.Context, limit int) ([]store.Settled, error) {
	return one(g, "RecoverEffects", "", func() ([]store.Settled, error) { return g.Store.RecoverEffects(ctx, limit) })
}

func (g *gate) LeaseLookups(ctx context.Context, owner string, lease time.Duration, limit int) ([]store.LeasedEffect, error) {
	return one(g, "LeaseLookups", "", func() ([]store.LeasedEffect, error) { return g.Store.LeaseLookups(ctx, owner, lease, limit) })
}

func (g *gate) SettleLookup(ctx context.Context, owner string, l store.LookupResult) (store.Settled, error) {
	return one(g, "SettleLookup", l.EffectID, func() (store.Settled, error) { return g.Store.SettleLookup(ctx, owner, l) })
}

func (g *gate) ResolveEffect(ctx context.Context, r store.EffectVerdict) (store.Settled, error) {
	return one(g, "ResolveEffect", r.EffectID, func() (store.Settled, error) { return g.Store.ResolveEffect(ctx, r) })
}

func (g *gate) CancelEffect(ctx context.Context, tenant, id string, reason []byte, who holdpoint.Who) (store.Settled, error) {
	return one(g, "CancelEffect", id, func() (store.Settled, error) { return g.Store.CancelEffect(ctx, tenant, id, reason, who) })
}

func (g *gate) ScheduleLookup(ctx context.Context, tenant, id string, who holdpoint.Who) (holdpoint.Effect, error) {
	return one(g, "ScheduleLookup", id, func() (holdpoint.Effect, error) { return g.Store.ScheduleLookup(ctx, tenant, id, who) })
}

func (g *gate) HoldConnector(ctx context.Context, h store.ConnectorHold, who holdpoint.Who) error {
	return none(g, "HoldConnector", h.Connector, func() error { return g.Store.HoldConnector(ctx, h, who) })
}

func (g *gate) ReleaseConnector(ctx context.Context, tenant, connector, version string, who holdpoint.Who) (int, error) {
	return one(g, "ReleaseConnector", connector, func() (int, error) { return g.Store.ReleaseConnector(ctx, tenant, connector, version, who) })
}

func (g *gate) CloseExpired(ctx context.Context, tenant string, keep map[string]time.Duration, limit int) ([]store.Settled, error) {
	return one(g, "CloseExpired", tenant, func() ([]store.Settled, error) { return g.Store.CloseExpired(ctx, tenant, keep, limit) })
}

func (g *gate) SetSwitch(ctx context.Context, c store.SwitchChange) (s holdpoint.Switch, flight []holdpoint.Attempt, err error) {
	return two(g, "SetSwitch", c.Scope, func() (holdpoint.Switch, []holdpoint.Attempt, error) { return g.Store.SetSwitch(ctx, c) })
}

func (g *gate) GrantRole(ctx context.Context, tenant, id, role string, who holdpoint.Who) error {
	return none(g, "GrantRole", id, func() error { return g.Store.GrantRole(ctx, tenant, id, role, who) })
}

func (g *gate) RevokeRole(ctx context.Context, tenant, id, role string, who holdpoint.Who) error {
	return none(g, "RevokeRole", id, func() error { return g.Store.RevokeRole(ctx, tenant, id, role, who) })
}

func (g *gate) SetDisabled(ctx context.Context, tenant, id string, disabled bool, who holdpoint.Who) error {
	return none(g, "SetDisabled", id, func() error { return g.Store.SetDisabled(ctx, tenant, id, disabled, who) })
}

func (g *gate) ActivatePolicy(ctx context.Context, tenant, hash, expected string, who holdpoint.Who) error {
	return none(g, "ActivatePolicy", hash, func() error {
		defer g.p.w.tenant.Store(nil)
		return g.Store.ActivatePolicy(ctx, tenant, hash, expected, who)
	})
}

// LeaseMessages finds none: no policy of this package has a channel.
func (g *gate) LeaseMessages(context.Context, string, time.Duration, int) ([]store.Message, error) {
	return nil, nil
}

// ListTenants and TenantByName are asked in every poll. Only an activation changes what they answer.
func (g *gate) ListTenants(ctx context.Context) ([]store.Tenant, error) {
	t, err := g.TenantByName(ctx, tenant)
	return []store.Tenant{t}, err
}

func (g *gate) TenantByName(ctx context.Context, name string) (store.Tenant, error) {
	w := g.p.w
	if t := w.tenant.Load(); t != nil && name == tenant && !g.p.dead.Load() {
		return *t, nil
	}
	t, err := g.Store.TenantByName(ctx, name)
	if err == nil {
		w.tenant.Store(&t)
	}
	return t, err
}
