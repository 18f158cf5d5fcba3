package storetest

import (
	"cmp"
	"slices"
	"time"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/internal/store"
)

// effectOf finds an effect and its run; not_found.
func (m *model) effectOf(tenant, id string) (*modelRun, *store.EffectRow, error) {
	for _, r := range m.sorted(tenant) {
		for i := range r.Effects {
			if r.Effects[i].ID == id {
				return r, &r.Effects[i], nil
			}
		}
	}
	return nil, nil, refused(holdpoint.CodeNotFound)
}

// each calls fn for every effect of the store in a state.
func (m *model) each(state holdpoint.EffectState, fn func(r *modelRun, e *store.EffectRow)) {
	for _, r := range m.sorted("") {
		for i := range r.Effects {
			if r.Effects[i].State == state {
				fn(r, &r.Effects[i])
			}
		}
	}
}

// save ends the lease of an effect that has changed and gives it a new version.
func (m *model) save(r *modelRun, e *store.EffectRow, hold holdpoint.Hold) {
	e.LeaseOwner, e.LeaseExpiresAt, e.Version = "", nil, e.Version+1
	if hold != e.Hold {
		r.heldAt[e.ID] = m.clock()
	}
	e.Hold = hold
}

// move makes one transition of an effect. What is possibly committed becomes unknown where it would have failed, unless a
// person abandons it (I3).
func (m *model) move(r *modelRun, e *store.EffectRow, to holdpoint.EffectState, trigger, kind string, hold holdpoint.Hold) error {
	if to == holdpoint.EffectFailed && e.PossiblyCommitted && trigger != "abandon" {
		to, kind = holdpoint.EffectUnknown, ""
		if e.NextLookupAt == nil {
			e.NextLookupAt = m.lookAt(e, 0)
		}
	}
	if !holdpoint.Allowed(holdpoint.EffectTransitions, e.State, to, trigger) {
		return refused(holdpoint.CodeInternal)
	}
	switch to {
	case holdpoint.EffectCompleted:
		e.PossiblyCommitted, e.FailureClass, e.Reason, e.NextLookupAt = false, "", "", nil
		kind = "effect.completed"
	case holdpoint.EffectUnknown:
		if e.State != to {
			r.doubtedAt[e.ID] = m.clock()
		}
		kind = "effect.unknown"
	case holdpoint.EffectFailed:
		e.NextLookupAt = nil
		kind = "effect.failed"
	default:
		e.NextLookupAt = nil
		kind = cmp.Or(kind, "effect.retry")
	}
	e.State = to
	m.save(r, e, hold)
	m.tell(r, kind)
	return nil
}

// lookAt is the time of the next look-up: after delay, never before the write deadline.
func (m *model) lookAt(e *store.EffectRow, delay time.Duration) *time.Time {
	at := m.clock().Add(delay)
	if e.SendBefore != nil && e.SendBefore.After(at) {
		at = *e.SendBefore
	}
	return &at
}

// open are the attempts of an effect that are begun and not settled.
func (r *modelRun) open(id string) (all []*holdpoint.Attempt) {
	for i := range r.Attempts {
		if a := &r.Attempts[i]; a.EffectID == id && a.SettledAt == nil {
			all = append(all, a)
		}
	}
	return all
}

// notBegun reports whether an effect can still be stopped.
func (r *modelRun) notBegun(e *store.EffectRow) bool {
	return e.State == holdpoint.EffectPending || e.State == holdpoint.EffectSending && len(r.open(e.ID)) == 0
}

// end takes an effect that has not begun out of the outbox.
func (m *model) end(r *modelRun, e *store.EffectRow, reason string) error {
	if e.State == holdpoint.EffectSending {
		if err := m.move(r, e, holdpoint.EffectPending, "retry", "effect.released", e.Hold); err != nil {
			return err
		}
	}
	e.Reason = reason
	return m.move(r, e, holdpoint.EffectFailed, "end", "", "")
}

// endNotBegun ends what has not begun of an approval, or of the whole run for "", and counts it.
func (m *model) endNotBegun(r *modelRun, approvalID, reason string) (n int) {
	for i := range r.Effects {
		e := &r.Effects[i]
		if (approvalID == "" || e.ApprovalID == approvalID) && r.notBegun(e) && m.end(r, e, reason) == nil {
			n++
		}
	}
	return n
}

// ended are the reasons with which an effect is not wanted any more: it is never sent again.
var ended = []string{"cancelled", "withdrawn", "predecessor", "budget", "expired"}

// settle ends what waits for a failed effect and, when no effect is open, the run. It reports whether the run ended.
func (m *model) settle(r *modelRun) bool {
	for again := true; again; {
		again = false
		for i := range r.Effects {
			for j := range r.Effects {
				w := &r.Effects[j]
				if r.Effects[i].State == holdpoint.EffectFailed && w.State == holdpoint.EffectPending && slices.Contains(w.After, r.Effects[i].Slot) {
					again = m.end(r, w, "predecessor") == nil
				}
			}
		}
	}
	if r.Run.State != holdpoint.RunApproved {
		return false
	}
	// Of several reasons the one that somebody must look at first.
	rank := []holdpoint.Reason{"", holdpoint.ReasonCancelled, holdpoint.ReasonWithdrawn, holdpoint.ReasonExpired, holdpoint.ReasonEffectFailed, holdpoint.ReasonAbandoned}
	to, kind, first := holdpoint.RunCompleted, "run.completed", 0
	var class holdpoint.FailureClass
	for _, e := range r.Effects {
		if e.State.Open() {
			return false
		}
		if e.State != holdpoint.EffectFailed {
			continue
		}
		to, kind = holdpoint.RunFailedTerminal, "run.failed"
		reason := holdpoint.ReasonEffectFailed
		switch e.Reason {
		case "predecessor":
			reason = ""
		case "abandoned", "cancelled", "withdrawn", "expired":
			reason = holdpoint.Reason(e.Reason)
		}
		if n := slices.Index(rank, reason); n > first {
			first, class = n, e.FailureClass
		}
	}
	m.tell(r, kind)
	return m.turn(r, to, "settle", rank[first], class) == nil
}

// settled is what stands for an effect after a verb that has moved it.
func (m *model) settled(r *modelRun, e *store.EffectRow) store.Settled {
	moved := e.Effect
	ended := m.settle(r)
	return store.Settled{Effect: moved, Run: r.Run, RunEnded: ended}
}

// accept completes an effect on the word of its provider, whoever holds it now.
func (m *model) accept(r *modelRun, e *store.EffectRow, providerID string) error {
	if !e.State.Open() {
		return nil
	}
	e.ProviderID = cmp.Or(providerID, e.ProviderID)
	trigger := "found"
	switch e.State {
	case holdpoint.EffectSending:
		trigger = "accept"
	case holdpoint.EffectPending: // what was accepted may not be sent again: first doubt, then certainty
		e.PossiblyCommitted = true
		if err := m.move(r, e, holdpoint.EffectUnknown, "doubt", "", ""); err != nil {
			return err
		}
	}
	return m.move(r, e, holdpoint.EffectCompleted, trigger, "", "")
}

// apply moves an effect as its owner says, as far as what the attempt left in doubt permits (I3).
func (m *model) apply(r *modelRun, e *store.EffectRow, s store.Settlement) error {
	to, trigger, kind := s.State, s.Trigger, ""
	unclear := s.AttemptID != "" && s.Outcome.Result != holdpoint.Rejected
	e.PossiblyCommitted = e.PossiblyCommitted || s.PossiblyCommitted || unclear
	e.FailureClass, e.Reason = s.Outcome.Class, s.Reason
	if s.Spend {
		e.Spent++
	}
	if proved := r.proved[s.AttemptID].After(m.clock()); to == holdpoint.EffectPending && unclear && (!proved || s.Outcome.Result == holdpoint.Accepted) {
		to, trigger = holdpoint.EffectUnknown, "doubt"
	}
	hold := holdpoint.HoldNone
	switch {
	case to == holdpoint.EffectCompleted:
		return refused(holdpoint.CodeInternal)
	case trigger == "end":
		return m.end(r, e, cmp.Or(s.Reason, "budget"))
	case to == holdpoint.EffectPending:
		hold, e.NextAttemptAt = s.Hold, new(m.clock().Add(max(s.Next, 0)))
		switch {
		case s.Hold != "":
			kind = "effect.held"
		case s.AttemptID == "":
			kind = "effect.released"
		}
	case to == holdpoint.EffectUnknown && s.Next >= 0:
		e.NextLookupAt = m.lookAt(e, s.Next)
	case to == holdpoint.EffectFailed:
		e.Reason = cmp.Or(s.Reason, string(s.Outcome.Class))
	}
	return m.move(r, e, to, trigger, kind, hold)
}

// switchedOn reports whether an effect may be sent: global and tenant are on, and nothing narrower is off (R4.8).
func (m *model) switchedOn(e holdpoint.Effect) bool {
	if !m.switches[modelRef{"", "global"}].On || !m.switches[modelRef{e.Tenant, "tenant"}].On {
		return false
	}
	for _, scope := range []string{"workflow:" + e.Workflow, "connector:" + e.Connector, "type:" + e.Type} {
		if s, stored := m.switches[modelRef{e.Tenant, scope}]; stored && !s.On {
			return false
		}
	}
	return true
}

// stoppedBy gives the hold of an effect's connector that stands, or "": the whole connector's before one type's.
func (m *model) stoppedBy(e holdpoint.Effect) holdpoint.Hold {
	for _, typ := range []string{"", e.Type} {
		if h, ok := m.stopped[[3]string{e.Tenant, e.Connector, typ}]; ok && m.stands(h) {
			return h.Hold
		}
	}
	return ""
}

// stands reports whether a connector's hold is not over.
func (m *model) stands(h store.ConnectorHold) bool { return h.Until.IsZero() || !m.past(h.Until) }
