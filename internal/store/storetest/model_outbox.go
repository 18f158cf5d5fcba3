package storetest

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/internal/store"
)

// leased is an effect as its lease gives it, with what the dispatcher judges it by.
func (m *model) leased(r *modelRun, e *store.EffectRow) store.LeasedEffect {
	l := store.LeasedEffect{Effect: e.Effect, Target: e.Target, Payload: e.Payload, RunKey: r.RunKey, RunKeyT: r.Run.Key, Now: m.clock()}
	_, a, _ := m.approval(e.Tenant, e.ApprovalID)
	t := m.tenants[e.Tenant]
	l.Roles, l.Policy = a.Roles, t.ActivePolicy
	for _, d := range r.Decisions {
		if p := t.people[d.PersonID]; d.ApprovalID == a.ID && p != nil {
			l.Decider = *p
		}
	}
	if p, ok := m.proofs[[3]string{e.Tenant, e.Connector, e.ConnectorVersion}]; ok && !m.past(p.ExpiresAt) {
		l.KeyLife = p.KeyLife
	}
	return l
}

func (m *model) LeaseEffects(_ context.Context, l store.EffectLease) (leased []store.LeasedEffect, _ error) {
	if !l.Enabled {
		return nil, nil
	}
	type due struct {
		r *modelRun
		e *store.EffectRow
	}
	var all []due
	m.each(holdpoint.EffectPending, func(r *modelRun, e *store.EffectRow) {
		if e.Hold == "" && m.past(*e.ExecuteBy) {
			m.save(r, e, holdpoint.HoldExpired)
			m.tell(r, "effect.held")
		}
		waits := slices.ContainsFunc(e.After, func(slot string) bool {
			return !slices.ContainsFunc(r.Effects, func(p store.EffectRow) bool { return p.Slot == slot && p.State == holdpoint.EffectCompleted })
		})
		if e.Hold == "" && m.past(*e.NextAttemptAt) && r.Run.State == holdpoint.RunApproved && m.switchedOn(e.Effect) && m.stoppedBy(e.Effect) == "" && !waits &&
			!slices.Contains(l.Skip, e.Provider) {
			all = append(all, due{r, e})
		}
	})
	slices.SortFunc(all, func(a, b due) int {
		return cmp.Or(a.e.NextAttemptAt.Compare(*b.e.NextAttemptAt), strings.Compare(a.e.ID, b.e.ID))
	})
	for _, d := range all[:min(len(all), l.Limit)] {
		d.e.State, d.e.Version, d.e.LeaseOwner, d.e.LeaseExpiresAt = holdpoint.EffectSending, d.e.Version+1, l.Owner, new(m.clock().Add(l.For))
		m.tell(d.r, "effect.leased")
		leased = append(leased, m.leased(d.r, d.e))
	}
	return leased, nil
}

func (m *model) BeginAttempts(_ context.Context, owner string, list []store.AttemptBegin) (begun []store.BegunAttempt, err error) {
	for _, a := range list {
		r, e, missing := m.effectOf(a.Tenant, a.EffectID)
		if missing != nil || r.Run.ID != a.RunID || e.State != holdpoint.EffectSending || e.LeaseOwner != owner || m.past(*e.LeaseExpiresAt) {
			continue
		}
		if e.Version == a.Version+1 { // a lost answer: the attempt that stands, if it is this one
			for _, open := range r.open(e.ID) {
				if open.ID == a.ID {
					begun = append(begun, store.BegunAttempt{Attempt: *open, Version: e.Version, Now: m.clock()})
				}
			}
		}
		if e.Version != a.Version {
			continue
		}
		before := m.clock().Add(a.SendBefore)
		switch {
		case !m.switchedOn(e.Effect):
			e.NextAttemptAt = new(m.clock().Add(time.Second))
			err = m.move(r, e, holdpoint.EffectPending, "retry", "effect.released", "")
		case m.past(*e.ExecuteBy):
			err = m.move(r, e, holdpoint.EffectPending, "retry", "effect.held", holdpoint.HoldExpired)
		case e.PossiblyCommitted && (a.ProofUntil.Before(before) || e.WireHash != "" && e.WireHash != a.WireHash): // I3
			e.FailureClass, e.NextLookupAt = holdpoint.ClassKeyWindowOver, m.lookAt(e, 0)
			err = m.move(r, e, holdpoint.EffectUnknown, "doubt", "", "")
		default:
			begun = append(begun, m.begin(r, e, a, before))
		}
		if err != nil {
			return nil, err
		}
	}
	return begun, nil
}

func (m *model) begin(r *modelRun, e *store.EffectRow, a store.AttemptBegin, before time.Time) store.BegunAttempt {
	e.Attempts++
	e.Version++
	if e.FirstAttemptAt == nil {
		e.FirstAttemptAt = new(m.clock())
	}
	e.WireHash = cmp.Or(e.WireHash, a.WireHash)
	e.SendBefore = &before
	if e.LeaseExpiresAt.Before(before) { // the lease lasts as long as the attempt may
		e.LeaseExpiresAt = &before
	}
	attempt := holdpoint.Attempt{ID: a.ID, EffectID: e.ID, RunID: r.Run.ID, Number: e.Attempts, BegunAt: m.clock(), SendBefore: before, WireHash: a.WireHash}
	r.Attempts = append(r.Attempts, attempt)
	r.proved[a.ID] = a.ProofUntil
	m.tell(r, "attempt.begun")
	return store.BegunAttempt{Attempt: attempt, Version: e.Version, Now: m.clock()}
}

func (m *model) ReleaseEffects(ctx context.Context, owner string, list []store.Settlement) error {
	for _, s := range list {
		if s.AttemptID != "" || s.State == holdpoint.EffectCompleted {
			return refused(holdpoint.CodeInternal)
		}
	}
	_, err := m.SettleAttempts(ctx, owner, list)
	return err
}

func (m *model) SettleAttempts(ctx context.Context, owner string, list []store.Settlement) ([]store.Settled, error) {
	var runs []*modelRun
	for _, s := range list {
		r, e, err := m.effectOf(s.Tenant, s.EffectID)
		if err != nil || r.Run.ID != s.RunID {
			return nil, refused(holdpoint.CodeNotFound)
		}
		if s.AttemptID != "" && !slices.ContainsFunc(r.Attempts, func(a holdpoint.Attempt) bool { return a.ID == s.AttemptID && a.EffectID == e.ID }) {
			return nil, refused(holdpoint.CodeNotFound)
		}
		if !slices.Contains(runs, r) {
			runs = append(runs, r)
		}
	}
	out := make([]store.Settled, len(list))
	var holds []store.Settlement
	err := m.verb(func() error {
		for i, s := range list {
			var again bool
			var err error
			if out[i], again, err = m.settleOne(owner, s); err != nil {
				return err
			}
			if s.Connector != nil && !again {
				holds = append(holds, s)
			}
		}
		for _, r := range runs {
			ended := m.settle(r)
			for i, s := range slices.Backward(list) { // told once, with the last of its effects
				if s.RunID == r.Run.ID {
					out[i].Run, out[i].RunEnded, ended = r.Run, ended, false
				}
			}
		}
		return nil
	}, runs...)
	if err != nil {
		return nil, err
	}
	for _, s := range holds {
		_ = m.HoldConnector(ctx, *s.Connector, s.Who)
	}
	return out, nil
}

// settleOne records one outcome and moves its effect if it counts. It reports whether the attempt was settled before.
func (m *model) settleOne(owner string, s store.Settlement) (_ store.Settled, again bool, err error) {
	r, e, _ := m.effectOf(s.Tenant, s.EffectID)
	ours := e.State == holdpoint.EffectSending && e.LeaseOwner == owner && e.Version == s.Version
	accepted := false
	if s.AttemptID == "" {
		ours = ours && r.notBegun(e)
	} else {
		a := &r.Attempts[slices.IndexFunc(r.Attempts, func(a holdpoint.Attempt) bool { return a.ID == s.AttemptID })]
		if a.SettledAt != nil && a.Class != holdpoint.ClassCrash {
			return store.Settled{Effect: e.Effect}, true, nil
		}
		o := s.Outcome
		a.Result, a.Phase, a.Class, a.Status, a.ProviderID, a.Detail, a.SettledAt = o.Result, o.Phase, o.Class, o.Status, o.ProviderID, o.Detail, new(m.clock())
		accepted = o.Result == holdpoint.Accepted
		kind := "attempt.settled"
		if !ours || s.Late {
			kind = "attempt.late_answer"
		}
		m.tell(r, kind)
	}
	switch {
	case accepted && s.State == holdpoint.EffectCompleted:
		err = m.accept(r, e, s.Outcome.ProviderID)
	case accepted && e.State == holdpoint.EffectPending: // accepted without a reference: it may not be sent again
		e.PossiblyCommitted, e.FailureClass, e.NextLookupAt = true, s.Outcome.Class, m.lookAt(e, 0)
		err = m.move(r, e, holdpoint.EffectUnknown, "doubt", "", "")
	case !ours:
		if accepted && e.State == holdpoint.EffectSending { // another attempt is under way; nothing after it without a proof
			e.PossiblyCommitted = true
		}
		return store.Settled{Effect: e.Effect, Lost: true}, false, nil
	default:
		err = m.apply(r, e, s)
	}
	m.queue(s.Messages)
	return store.Settled{Effect: e.Effect}, false, err
}

// crash settles the open attempts of an effect whose process was lost.
func (m *model) crash(r *modelRun, e *store.EffectRow) {
	for _, a := range r.open(e.ID) {
		a.Result, a.Class, a.SettledAt = holdpoint.Unclear, holdpoint.ClassCrash, new(m.clock())
		m.tell(r, "attempt.settled")
	}
}

func (m *model) RecoverEffects(_ context.Context, limit int) (all []store.Settled, err error) {
	m.each(holdpoint.EffectSending, func(r *modelRun, e *store.EffectRow) {
		if !m.past(*e.LeaseExpiresAt) || len(all) >= limit || err != nil {
			return
		}
		if r.notBegun(e) {
			e.NextAttemptAt = new(m.clock())
			err = m.move(r, e, holdpoint.EffectPending, "retry", "effect.released", "")
		} else {
			m.crash(r, e)
			e.PossiblyCommitted, e.FailureClass, e.NextLookupAt = true, holdpoint.ClassCrash, m.lookAt(e, 0)
			err = m.move(r, e, holdpoint.EffectUnknown, "doubt", "", "")
		}
		all = append(all, store.Settled{Effect: e.Effect, Run: r.Run})
	})
	// An attempt whose effect went on without it is over at its write deadline.
	for _, r := range m.sorted("") {
		for i := range r.Effects {
			e := &r.Effects[i]
			late := slices.ContainsFunc(r.open(e.ID), func(a *holdpoint.Attempt) bool { return m.past(a.SendBefore) })
			if late && e.State != holdpoint.EffectSending {
				m.crash(r, e)
			}
		}
	}
	return all, err
}
