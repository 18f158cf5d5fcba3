package storetest

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/internal/store"
)

func (m *model) LeaseLookups(_ context.Context, owner string, lease time.Duration, limit int) (leased []store.LeasedEffect, _ error) {
	m.each(holdpoint.EffectUnknown, func(r *modelRun, e *store.EffectRow) {
		due := e.NextLookupAt != nil && m.past(*e.NextLookupAt) && (e.SendBefore == nil || m.past(*e.SendBefore))
		if due && (e.LeaseExpiresAt == nil || m.past(*e.LeaseExpiresAt)) && len(leased) < limit {
			e.LeaseOwner, e.LeaseExpiresAt, e.Version = owner, new(m.clock().Add(lease)), e.Version+1
			leased = append(leased, m.leased(r, e))
		}
	})
	return leased, nil
}

func (m *model) SettleLookup(_ context.Context, owner string, l store.LookupResult) (s store.Settled, err error) {
	r, e, err := m.effectOf(l.Tenant, l.EffectID)
	if err != nil {
		return s, err
	}
	if e.State != holdpoint.EffectUnknown || e.LeaseOwner != owner || e.Version != l.Version {
		return store.Settled{Effect: e.Effect, Run: r.Run, Lost: true}, nil
	}
	err = m.verb(func() error {
		e.Lookups++
		m.tell(r, "lookup.settled")
		reads := e.AbsentReads
		e.AbsentReads = 0
		switch l.State {
		case "found":
			e.ProviderID = cmp.Or(l.ProviderID, e.ProviderID)
			err = m.move(r, e, holdpoint.EffectCompleted, "found", "", "")
		case "proved_absent":
			e.AbsentResends++
			err = m.sendAgain(r, e, "absent", max(l.Next, 0))
		case "repeatable":
			if e.AbsentReads = reads; slices.Contains(ended, e.Reason) { // not wanted any more, however harmless
				m.lookAgain(r, e, l.Next)
				break
			}
			e.NextAttemptAt = new(m.clock())
			err = m.move(r, e, holdpoint.EffectPending, "absent", "", m.overdue(e))
		case "absent":
			e.AbsentReads = reads + 1
			m.lookAgain(r, e, l.Next)
		case "unclear":
			m.lookAgain(r, e, l.Next)
		default:
			err = refused(holdpoint.CodeInternal)
		}
		if err == nil {
			s = m.settled(r, e)
		}
		return err
	}, r)
	return s, err
}

// overdue is the hold of an effect that becomes pending past its time.
func (m *model) overdue(e *store.EffectRow) holdpoint.Hold {
	if m.past(*e.ExecuteBy) {
		return holdpoint.HoldExpired
	}
	return ""
}

// lookAgain leaves an effect unknown until its next look-up, if there is to be one.
func (m *model) lookAgain(r *modelRun, e *store.EffectRow, next time.Duration) {
	e.NextLookupAt = nil
	if next > 0 {
		e.NextLookupAt = m.lookAt(e, next)
	}
	m.save(r, e, "")
}

// sendAgain makes pending what is known not to have happened, or ends it if it is not wanted any more.
func (m *model) sendAgain(r *modelRun, e *store.EffectRow, trigger string, delay time.Duration) error {
	e.PossiblyCommitted, e.NextAttemptAt = false, new(m.clock().Add(delay))
	reason := e.Reason
	if !slices.Contains(ended, reason) {
		e.Reason, reason = "", ""
	}
	if err := m.move(r, e, holdpoint.EffectPending, trigger, "", m.overdue(e)); err != nil || reason == "" {
		return err
	}
	return m.end(r, e, reason)
}

func (m *model) ResolveEffect(_ context.Context, v store.EffectVerdict) (s store.Settled, err error) {
	r, e, err := m.effectOf(v.Tenant, v.EffectID)
	if err != nil {
		return s, err
	}
	if e.State != holdpoint.EffectUnknown {
		return s, refused(holdpoint.CodeNotAllowedNow)
	}
	err = m.verb(func() (err error) {
		m.tell(r, "effect.resolved")
		switch v.Verdict {
		case holdpoint.VerdictSent:
			e.ProviderID = cmp.Or(v.ProviderID, e.ProviderID)
			err = m.move(r, e, holdpoint.EffectCompleted, "sent", "", "")
		case holdpoint.VerdictNotSent:
			e.AbsentReads = 0
			err = m.sendAgain(r, e, "not_sent", 0)
		case holdpoint.VerdictAbandon:
			e.Reason = "abandoned"
			err = m.move(r, e, holdpoint.EffectFailed, "abandon", "", "")
		default:
			err = refused(holdpoint.CodeInvalidRequest)
		}
		if err == nil {
			s = m.settled(r, e)
		}
		return err
	}, r)
	return s, err
}

func (m *model) CancelEffect(_ context.Context, tenant, id string, _ []byte, _ holdpoint.Who) (s store.Settled, err error) {
	r, e, err := m.effectOf(tenant, id)
	if err != nil {
		return s, err
	}
	if !r.notBegun(e) {
		return s, refused(holdpoint.CodeNotAllowedNow)
	}
	m.tell(r, "effect.cancelled")
	if err := m.end(r, e, "cancelled"); err != nil {
		return s, err
	}
	return m.settled(r, e), nil
}

func (m *model) ScheduleLookup(_ context.Context, tenant, id string, _ holdpoint.Who) (holdpoint.Effect, error) {
	r, e, err := m.effectOf(tenant, id)
	if err != nil {
		return holdpoint.Effect{}, err
	}
	if e.State != holdpoint.EffectUnknown {
		return holdpoint.Effect{}, refused(holdpoint.CodeNotAllowedNow)
	}
	e.NextLookupAt = m.lookAt(e, 0)
	m.tell(r, "lookup.scheduled")
	return e.Effect, nil
}

func (m *model) CloseExpired(_ context.Context, tenant string, keep map[string]time.Duration, limit int) (all []store.Settled, err error) {
	type over struct {
		r *modelRun
		e *store.EffectRow
	}
	var found []over
	m.each(holdpoint.EffectPending, func(r *modelRun, e *store.EffectRow) {
		d, named := keep[e.Workflow]
		if !named {
			d, named = keep[""]
		}
		if e.Tenant == tenant && e.Hold == holdpoint.HoldExpired && named && m.past(r.heldAt[e.ID].Add(d)) {
			found = append(found, over{r, e})
		}
	})
	// What was held first goes first; what waits for it ends with it.
	slices.SortStableFunc(found, func(a, b over) int { return a.r.heldAt[a.e.ID].Compare(b.r.heldAt[b.e.ID]) })
	for _, o := range found[:min(limit, len(found))] {
		if o.e.State != holdpoint.EffectPending {
			continue
		}
		o.e.FailureClass = holdpoint.ClassExpired
		if err := m.end(o.r, o.e, "expired"); err != nil {
			return nil, err
		}
		all = append(all, m.settled(o.r, o.e))
	}
	return all, nil
}

// byConnector are the holds of an effect that its connector's release lifts.
var byConnector = []holdpoint.Hold{holdpoint.HoldCredentials, holdpoint.HoldPermission, holdpoint.HoldQuota, holdpoint.HoldConfiguration}

func (m *model) HoldEffects(_ context.Context, tenant string, ids []string, hold holdpoint.Hold, _ holdpoint.Who) (n int, err error) {
	if hold != holdpoint.HoldAuthority && hold != holdpoint.HoldRestored && !slices.Contains(byConnector, hold) {
		return 0, refused(holdpoint.CodeInternal) // not set by hand
	}
	m.each(holdpoint.EffectPending, func(r *modelRun, e *store.EffectRow) {
		// What only a person lifts goes over what a connector's release lifts, and nothing else over another hold.
		over := e.Hold == "" || hold == holdpoint.HoldAuthority && slices.Contains(byConnector, e.Hold)
		if e.Tenant == tenant && slices.Contains(ids, e.ID) && over {
			m.save(r, e, hold)
			m.tell(r, "effect.held")
			n++
		}
	})
	return n, nil
}

func (m *model) HoldConnector(_ context.Context, h store.ConnectorHold, _ holdpoint.Who) error {
	key := [3]string{h.Tenant, h.Connector, h.Type}
	old, held := m.stopped[key]
	if held && old.Until.IsZero() && !h.Until.IsZero() {
		return nil // what a person must lift is not shortened
	}
	h.Since = m.clock()
	if held && old.Hold == h.Hold && m.stands(old) {
		h.Since = old.Since // a hold that is repeated while it stands is no news
	} else {
		m.tellTenant(m.tenants[h.Tenant], "connector.held")
	}
	m.stopped[key] = h
	return nil
}

func (m *model) ReleaseConnector(_ context.Context, tenant, connector, version string, _ holdpoint.Who) (n int, _ error) {
	m.each(holdpoint.EffectPending, func(r *modelRun, e *store.EffectRow) {
		if e.Tenant == tenant && e.Connector == connector && e.ConnectorVersion == version && slices.Contains(byConnector, e.Hold) {
			m.save(r, e, "")
			m.tell(r, "effect.released")
			n++
		}
	})
	for key := range m.stopped {
		if key[0] == tenant && key[1] == connector {
			delete(m.stopped, key)
		}
	}
	m.tellTenant(m.tenants[tenant], "connector.released")
	return n, nil
}
