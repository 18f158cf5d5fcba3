package engine

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/holdpoint/holdpoint/connector"
	"github.com/holdpoint/holdpoint/internal/policy"
	"github.com/holdpoint/holdpoint/internal/store"
)

// The rules of an absence (R4.7): it counts only after send_before + max_lag, on this many consistent reads, and allows
// one new send; a second absence goes to a person.
const (
	absentReads   = 2
	absentResends = 1
)

// LeaseLookups leases unknown effects whose look-up is due. An effect whose repetition is proved goes back to pending; one
// that nothing can look up waits for a person. The rest is returned to be looked up, also beside an error: an effect that
// cannot be judged now is due again when its lease has expired, and keeps no other waiting.
func (e *Engine) LeaseLookups(ctx context.Context, owner string, lease time.Duration, limit int) ([]Task, error) {
	leased, err := e.store.LeaseLookups(ctx, owner, lease, limit)
	if err != nil {
		return nil, err
	}
	var tasks []Task
	var failed error
	for _, l := range leased {
		t, ask, err := e.lookup(ctx, owner, l)
		switch {
		case err != nil:
			failed = errors.Join(failed, fmt.Errorf("effect %s: %w", l.ID, err))
		case ask:
			tasks = append(tasks, t)
		}
	}
	return tasks, failed
}

// lookup judges a leased unknown effect: ask says that its provider is to be asked, otherwise it is settled.
func (e *Engine) lookup(ctx context.Context, owner string, l store.LeasedEffect) (t Task, ask bool, err error) {
	t = Task{LeasedEffect: l, wire: l.WireHash}
	p, err := e.policies.version(ctx, l.Tenant, l.Policy)
	if err != nil {
		return t, false, err
	}
	t.Connector, t.workflow = p.Connectors[l.Connector], p.Workflows[l.Workflow]
	r := store.LookupResult{Tenant: l.Tenant, RunID: l.RunID, EffectID: l.ID, Version: l.Version, State: connector.Unclear, Next: -1, Who: system("reconciler")}
	if t.Connector == nil || t.workflow == nil || t.Connector.Version != l.ConnectorVersion {
		r.Detail = "the connector of the approved version is not in the active policy"
	} else {
		if err := e.openTask(&t); err != nil {
			return t, false, err
		}
		switch {
		case t.FirstAttemptAt != nil && policy.Repeatable(t.facts(t.Spent, *t.FirstAttemptAt, t.Now)) && t.Spent < t.workflow.Retry.EffectAttempts && t.Reason == "":
			r.State, r.Detail = "repeatable", "the connector has proved that the same request under the same key is harmless"
		case t.Connector.Lookup != nil:
			return t, true, nil
		default:
			r.Detail = "the connector has no look-up"
		}
	}
	_, err = e.store.SettleLookup(ctx, owner, r)
	return t, false, err
}

// SettleLookup records what a look-up found.
func (e *Engine) SettleLookup(ctx context.Context, owner string, t *Task, f connector.Finding, took time.Duration) (store.Settled, error) {
	r := store.LookupResult{Tenant: t.Tenant, RunID: t.RunID, EffectID: t.ID, Version: t.Version, State: connector.Unclear, Detail: f.Detail, Who: system("reconciler")}
	settle := t.Connector.Lookup.Settle
	// The next look: by the schedule, then no more. An absence that still needs its second read gets one.
	r.Next = -1
	if n := t.Lookups + 1; n < len(settle) {
		r.Next = settle[n]
	}
	now := t.Now.Add(took)
	counts := t.SendBefore != nil && !now.Before(t.SendBefore.Add(t.Connector.Lookup.MaxLag))
	switch {
	case f.State == connector.Found && f.Matches <= 1:
		r.State, r.ProviderID = connector.Found, f.ProviderID
	case f.State == connector.Found:
		r.Detail, r.Next = "more than one object carries our reference", -1
	case f.State == connector.Absent && !counts:
		r.Detail = "absent, but the look-up may lag behind the write"
		if t.SendBefore != nil {
			r.Next = max(r.Next, t.SendBefore.Add(t.Connector.Lookup.MaxLag).Sub(now))
		}
	case f.State == connector.Absent && t.AbsentReads+1 < absentReads:
		r.State = connector.Absent
		if r.Next < 0 {
			r.Next = settle[len(settle)-1]
		}
	case f.State == connector.Absent && t.AbsentResends >= absentResends:
		r.Detail, r.Next = "absent again after a new send", -1
	case f.State == connector.Absent:
		r.State = "proved_absent"
	}
	return e.store.SettleLookup(ctx, owner, r)
}
