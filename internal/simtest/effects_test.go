package simtest

import (
	"time"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/internal/payload"
)

// slack is what two clocks may differ by where a rule is about an instant that the store does not set: the bubble's and
// the store's, which is at most five seconds off, and the second for which a process may use a policy that it has read.
const slack = 15 * time.Second

func (s *shadow) effectEvent(e event) {
	w := s.w
	if e.typ == "effect.queued" {
		s.queued(e)
		return
	}
	x := s.effect[e.Effect]
	if x == nil {
		w.broken("%s of no effect", e.typ)
	}
	if e.Version != 0 {
		// A look-up takes a lease of its own, which moves the version and is no transition.
		if e.Version != x.version+1 && !(x.state == holdpoint.EffectUnknown && e.Version > x.version) {
			w.broken("I5: %s of %s %s has version %d after %d", e.typ, w.name(e.run), x.slot, e.Version, x.version)
		}
		x.version = e.Version
	}
	switch e.typ {
	case "effect.leased":
		s.leased(e, x)
	case "attempt.begun":
		s.begun(e, x)
	case "attempt.settled", "attempt.late_answer":
		s.settled(e, x)
	case "lookup.settled":
		if e.State == "proved_absent" {
			x.maybe = false
		}
		w.reach("look-up: " + e.State)
	case "effect.resolved":
		x.word = e.Verdict
		if e.Verdict == holdpoint.VerdictNotSent {
			x.maybe = false
		}
		w.reach("verdict: " + string(e.Verdict))
	case "effect.held":
		x.hold = e.Hold
		w.reach("hold: " + string(e.Hold))
	case "effect.released":
		if e.To == "" {
			x.hold = ""
		}
	}
	if e.To == "" || e.typ == "effect.leased" {
		return
	}
	to := holdpoint.EffectState(e.To)
	if (x.state == holdpoint.EffectCompleted || x.state == holdpoint.EffectFailed) && to != x.state {
		w.broken("%s moves an effect of %s that has ended", e.typ, w.name(e.run))
	}
	move(s, "effect", holdpoint.EffectTransitions, e, x.state, holdpoint.EffectState(e.From), to, e.Trigger)
	if to == holdpoint.EffectFailed && x.maybe && e.Trigger != "abandon" {
		w.broken("I3: %s of %s failed, and a request of it may have been accepted", x.slot, w.name(e.run))
	}
	if to == holdpoint.EffectFailed && x.possibly && e.Trigger != "abandon" {
		w.broken("I3: %s of %s failed while it was possibly committed", x.slot, w.name(e.run))
	}
	x.state, x.hold, x.possibly = to, e.Hold, e.Possibly
	if to == holdpoint.EffectCompleted {
		x.maybe = false
	}
}

// queued takes a released effect: only an approved question releases one (I1, I4).
func (s *shadow) queued(e event) {
	w, r := s.w, s.runOf(e)
	a := s.approvedOf(r)
	if a == nil || a.state != holdpoint.ApprovalApproved || a.by == "" {
		w.broken("I1: an effect of %s was released without an approved question", w.name(e.run))
	}
	x := &effect{id: e.Effect, slot: e.Slot, typ: e.Type, connector: e.Connector, cv: e.ConnectorV, payload: e.PayloadHash, run: r, approval: a,
		state: holdpoint.EffectPending, version: 1, executeBy: e.ExecuteBy}
	if s.effect[x.id] != nil {
		w.broken("an effect of %s was released twice", w.name(e.run))
	}
	s.effect[x.id], s.effects = x, append(s.effects, x)
	w.reach(transitionName("effect", "", holdpoint.EffectPending, "release"))
}

// leased holds a lease to I2.
func (s *shadow) leased(e event, x *effect) {
	w := s.w
	move(s, "effect", holdpoint.EffectTransitions, e, x.state, holdpoint.EffectState(e.From), holdpoint.EffectState(e.To), "lease")
	switch {
	case !s.allowed(x):
		w.broken("I2: %s of %s was leased under a switch that is off", x.slot, w.name(e.run))
	case x.hold != holdpoint.HoldNone:
		w.broken("I2: %s of %s was leased under hold %s", x.slot, w.name(e.run), x.hold)
	case !e.at.Before(x.executeBy):
		w.broken("I2: %s of %s was leased after its time", x.slot, w.name(e.run))
	case x.run.state != holdpoint.RunApproved:
		w.broken("I2: %s was leased while its run %s is %s", x.slot, w.name(e.run), x.run.state)
	}
	if before := s.before(x); before != nil && before.state != holdpoint.EffectCompleted {
		w.broken("I2: %s of %s was leased before %s has completed", x.slot, w.name(e.run), before.slot)
	}
	x.state, x.leased = holdpoint.EffectSending, e.at
}

// before gives the effect that must complete first.
func (s *shadow) before(x *effect) *effect {
	if x.slot != "reply" {
		return nil
	}
	for _, y := range s.effects {
		if y.run == x.run && y.slot == "note" {
			return y
		}
	}
	return nil
}

// begun holds an attempt to I2 and I3.
func (s *shadow) begun(e event, x *effect) {
	w := s.w
	switch {
	case x.state != holdpoint.EffectSending:
		w.broken("I2: an attempt of %s of %s began while it is %s", x.slot, w.name(e.run), x.state)
	case !s.allowed(x):
		w.broken("I2: an attempt of %s of %s began under a switch that is off", x.slot, w.name(e.run))
	case e.Number != len(x.attempts)+1:
		w.broken("I6: attempt %d of %s of %s follows %d", e.Number, x.slot, w.name(e.run), len(x.attempts))
	case (x.maybe || x.possibly) && !honours(x.connector):
		w.broken("I3: %s of %s is repeated, and an earlier request may have been accepted", x.slot, w.name(e.run))
	case (x.maybe || x.possibly) && e.Wire != x.attempts[0].wire:
		w.broken("I3: %s of %s is repeated with other bytes", x.slot, w.name(e.run))
	case (x.maybe || x.possibly) && e.at.After(x.first.Add(keyLife[x.connector])):
		w.broken("I3: %s of %s is repeated after the life of its key", x.slot, w.name(e.run))
	}
	for _, a := range x.attempts {
		if a.open && !honours(x.connector) {
			w.broken("I3: %s of %s has two open attempts", x.slot, w.name(e.run))
		}
	}
	if len(x.attempts) == 0 {
		x.first = e.at
	}
	if x.maybe {
		w.reach("repeated under a proof")
	}
	x.attempts = append(x.attempts, &attempt{id: e.Attempt, number: e.Number, wire: e.Wire, open: true})
}

func (s *shadow) settled(e event, x *effect) {
	for _, a := range x.attempts {
		if a.id != e.Attempt {
			continue
		}
		a.open = false
		if e.Result != holdpoint.Rejected {
			x.maybe = true
		}
		x.accepted = x.accepted || e.Result == holdpoint.Accepted
		s.w.reach("class: " + string(e.Class))
		if e.typ == "attempt.late_answer" {
			s.w.reach("late answer")
		}
		return
	}
	s.w.broken("an attempt of %s was settled that never began", s.w.name(e.run))
}

// arrived holds a request on the wire to what stands: nothing arrives but a released effect under an attempt that has
// begun, once for each attempt, with the bytes that were approved, for the target that was approved (I1 to I4, I9).
func (w *world) arrived(r *request) {
	s := w.evidence
	s.follow()
	var x *effect
	for _, y := range s.effects {
		if y.run.id == r.v.RunID && y.slot == r.v.Slot {
			x = y
		}
	}
	if x == nil {
		w.broken("I1: a request for an effect that was never released")
	}
	var open *attempt
	for _, a := range x.attempts {
		if a.open {
			open = a
		}
	}
	where := w.name(r.v.RunID) + " " + x.slot
	switch {
	case open == nil:
		w.broken("I2: a request of %s without an attempt that has begun", where)
	case open.requests > 0:
		w.broken("I2: a second request of one attempt of %s", where)
	case open.wire != r.hash:
		w.broken("I4: a request of %s with another wire hash than its attempt", where)
	case x.payload != hashOf(r.v):
		w.broken("I4: a request of %s with another payload than was approved", where)
	case x.connector != r.l.cfg.Name:
		w.broken("I7: a request of %s through another connector", where)
	}
	open.requests++
	s.bound(x, r)
	if r.v.Target != w.jobOf(x.run).to {
		w.broken("I4: a request of %s to another target", where)
	}
	// Who released it had the right when it was leased, and the connector was the approved one.
	if at := s.lost(x.approval.by); !at.IsZero() && x.leased.Sub(at) > slack {
		w.broken("I4: a request of %s although whoever approved it has lost the right", where)
	}
	if cv := w.base.connectors[s.policy][x.connector]; cv != x.cv && x.leased.Sub(s.moved) > slack {
		w.broken("I4: a request of %s although its connector has changed", where)
	}
	w.reach("request of " + x.connector)
}

// lost gives when a person lost the right to decide, or zero.
func (s *shadow) lost(person string) time.Time {
	for _, name := range s.w.base.leads[s.policy] {
		if s.w.base.people[name] == person && !s.disabled[person] {
			return time.Time{}
		}
	}
	if s.granted[person+"lead"] && !s.disabled[person] {
		return time.Time{}
	}
	if at := s.revoked[person]; at.After(s.moved) || s.w.base.people["dora"] == person {
		return at
	}
	return s.moved
}

// bound holds a request to the digest that was decided: made again from what the provider got (I4).
func (s *shadow) bound(x *effect, r *request) {
	in := payload.DigestInput{Tenant: tenant, RunID: x.run.id, Revision: x.approval.rev, PolicyHash: x.approval.policy}
	for _, y := range s.effects {
		if y.run != x.run {
			continue
		}
		d := payload.DigestEffect{Slot: y.slot, Type: y.typ, Connector: y.connector, ConnectorVersion: y.cv, Target: r.v.Target, PayloadHash: y.payload, Order: len(in.Effects)}
		if y == x {
			d.PayloadHash = hashOf(r.v)
		}
		if y.slot == "reply" {
			d.After = []string{"note"}
		}
		in.Effects = append(in.Effects, d)
	}
	if got := payload.Digest(in); got != x.approval.digest {
		s.w.broken("I4: what %s of %s sends is not what was decided", x.slot, s.w.name(x.run.id))
	}
}
