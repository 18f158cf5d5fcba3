package storetest

import (
	"slices"
	"time"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/internal/store"
)

// someEffect draws an effect, mostly one in these states, seldom one that is not there.
func (w *twin) someEffect(states ...holdpoint.EffectState) holdpoint.Effect {
	var all, fit []holdpoint.Effect
	for _, r := range w.model.sorted(modelTenants[0]) {
		for _, e := range r.Effects {
			if all = append(all, e.Effect); slices.Contains(states, e.State) {
				fit = append(fit, e.Effect)
			}
		}
	}
	switch {
	case len(all) == 0 || w.seldom("none", 30):
		return holdpoint.Effect{Tenant: modelTenants[0], EffectSpec: holdpoint.EffectSpec{ID: "effect-none", RunID: "run-none"}}
	case len(fit) > 0 && !w.seldom("any state", 6):
		return pick(w, "effect", fit...)
	}
	return pick(w, "effect", all...)
}

// recent draws one of the last of a list, mostly one that is live; zero of an empty list, which names nothing.
func recent[T any](w *twin, label string, list []T, live func(T) bool) T {
	if len(list) == 0 {
		return *new(T)
	}
	fit := slices.DeleteFunc(slices.Clone(list), func(v T) bool { return !live(v) })
	if len(fit) == 0 || w.seldom("not live", 5) {
		fit = list
	}
	return pick(w, label, fit[max(0, len(fit)-6):]...)
}

// leasedStill reports whether an effect has not moved since it was leased.
func (w *twin) leasedStill(l store.LeasedEffect) bool {
	_, e, err := w.model.effectOf(l.Tenant, l.ID)
	return err == nil && e.Version == l.Version && !w.model.past(*e.LeaseExpiresAt)
}

// mayAnswer reports whether an attempt has not its answer yet, and its effect has not ended.
func (w *twin) mayAnswer(b modelBegun) bool {
	r, e, err := w.model.effectOf(b.tenant, b.EffectID)
	return err == nil && e.State.Open() && slices.ContainsFunc(r.Attempts, func(a holdpoint.Attempt) bool {
		return a.ID == b.ID && (a.SettledAt == nil || a.Class == holdpoint.ClassCrash)
	})
}

// dispatcher is an owner of leases, mostly the same one.
func (w *twin) dispatcher() string { return pick(w, "dispatcher", "d1", "d1", "d1", "d2") }

func actLeaseEffects(w *twin) {
	l := store.EffectLease{Owner: w.dispatcher(), For: pick(w, "for", time.Minute, 20*time.Second), Limit: 100, Enabled: !w.seldom("not enabled", 12),
		Skip: pick(w, "skip", nil, nil, nil, []string{"https://crm"}, []string{"smtp://mail", "https://none"})}
	overdue := false // which of many are held first is not said
	w.model.each(holdpoint.EffectPending, func(_ *modelRun, e *store.EffectRow) { overdue = overdue || w.model.past(*e.ExecuteBy) })
	if !overdue {
		l.Limit = pick(w, "limit", 100, 1, 2)
	}
	leased, _ := ask(w, "LeaseEffects", func(s store.Store) ([]store.LeasedEffect, error) {
		return sortedBy(s.LeaseEffects(w.ctx, l))(func(e store.LeasedEffect) string { return e.ID })
	})
	w.leases = append(w.leases, leased...)
}

func actBeginAttempts(w *twin) {
	by := w.dispatcher()
	var list []store.AttemptBegin
	for range pick(w, "attempts", 1, 1, 2) {
		e := recent(w, "leased", w.leases, w.leasedStill)
		if slices.ContainsFunc(list, func(a store.AttemptBegin) bool { return a.EffectID == e.ID }) {
			continue
		}
		if !w.seldom("as another", 8) {
			by = e.LeaseOwner
		}
		a := store.AttemptBegin{ID: w.id("attempt"), Tenant: e.Tenant, EffectID: e.ID, RunID: e.RunID, Version: e.Version,
			WireHash: pick(w, "bytes", "wire", "wire", "wire", "other"), SendBefore: pick(w, "send before", 10*time.Second, 2*time.Minute)}
		if pick(w, "proved", true, true, false) {
			a.ProofUntil = w.now().Add(pick(w, "key life", time.Hour, 5*time.Second))
		}
		list = append(list, a)
	}
	if len(w.begins) > 0 && w.seldom("lost answer", 6) {
		list = []store.AttemptBegin{w.begins[len(w.begins)-1]}
	}
	w.beginAs(by, list...)
}

// beginAs asks for attempts and remembers those that were begun.
func (w *twin) beginAs(by string, list ...store.AttemptBegin) []store.BegunAttempt {
	begun, _ := ask(w, "BeginAttempts", func(s store.Store) ([]store.BegunAttempt, error) { return s.BeginAttempts(w.ctx, by, list) })
	w.begins = append(w.begins, list...)
	for _, b := range begun {
		w.begun = append(w.begun, modelBegun{b, modelTenants[0], by})
	}
	return begun
}

// verdicts are what a policy may say about an outcome, and two things that it may not.
var verdicts = []store.Settlement{
	{State: holdpoint.EffectPending, Trigger: "retry"}, {State: holdpoint.EffectPending, Trigger: "retry"}, {State: holdpoint.EffectUnknown, Trigger: "doubt"},
	{State: holdpoint.EffectFailed, Trigger: "refuse"}, {State: holdpoint.EffectUnknown, Trigger: "doubt", Next: 10 * time.Second},
	{State: holdpoint.EffectFailed, Trigger: "end"}, {State: holdpoint.EffectUnknown, Trigger: "doubt", Next: -1}, {State: holdpoint.EffectPending, Trigger: "retry", Hold: holdpoint.HoldQuota},
	{State: holdpoint.EffectPending, Trigger: "retry", Next: 20 * time.Second}, {State: holdpoint.EffectFailed, Trigger: "end", Reason: "budget"},
	{State: holdpoint.EffectPending, Trigger: "accept"}, {State: holdpoint.EffectCompleted, Trigger: "accept"},
}

func actSettleAttempts(w *twin) {
	by := w.dispatcher()
	var list []store.Settlement
	for range pick(w, "settlements", 1, 1, 1, 2) {
		b := recent(w, "attempt", w.begun, w.mayAnswer)
		if slices.ContainsFunc(list, func(s store.Settlement) bool { return s.EffectID == b.EffectID }) {
			continue
		}
		if !w.seldom("as another", 8) {
			by = b.owner
		}
		result := pick(w, "result", holdpoint.Unclear, holdpoint.Unclear, holdpoint.Accepted, holdpoint.Rejected, "")
		s := pick(w, "verdict", verdicts...)
		if result == holdpoint.Accepted && pick(w, "completes", true, true, false) {
			s = store.Settlement{State: holdpoint.EffectCompleted, Trigger: "accept"}
		}
		s.Tenant, s.RunID, s.EffectID, s.AttemptID, s.Version, s.Who = b.tenant, b.RunID, b.EffectID, b.ID, b.Version, lanes
		s.Outcome = holdpoint.Outcome{Result: result, Phase: holdpoint.PhaseComplete, Class: pick(w, "class", "", holdpoint.ClassThrottled), Status: 200,
			ProviderID: pick(w, "provider id", "", "provider-1"), Detail: "detail"}
		s.PossiblyCommitted, s.Spend, s.Late = w.seldom("possibly", 8), pick(w, "spend", true, false), w.seldom("late", 6)
		s.Messages = w.someMessages(b.RunID)
		if w.seldom("holds its connector", 8) {
			s.Connector = &store.ConnectorHold{Tenant: modelTenants[0], Connector: "mailer", Hold: holdpoint.HoldQuota, Until: w.now().Add(time.Minute)}
		}
		switch {
		case w.seldom("no such attempt", 20):
			s.AttemptID = "attempt-none"
		case w.seldom("another version", 10):
			s.Version--
		}
		list = append(list, s)
	}
	_, _ = ask(w, "SettleAttempts", func(s store.Store) ([]store.Settled, error) { return s.SettleAttempts(w.ctx, by, list) })
}

func actReleaseEffects(w *twin) {
	e := recent(w, "leased", w.leases, w.leasedStill)
	s := pick(w, "verdict", verdicts...)
	s.Tenant, s.RunID, s.EffectID, s.Version, s.Who = e.Tenant, e.RunID, e.ID, e.Version, lanes
	s.Outcome.Class, s.PossiblyCommitted = pick(w, "class", "", holdpoint.ClassConnect), w.seldom("possibly", 10)
	if w.seldom("an attempt", 15) {
		s.AttemptID = "attempt-none"
	}
	by := pick(w, "by", e.LeaseOwner, e.LeaseOwner, e.LeaseOwner, "d3")
	_, _ = ask(w, "ReleaseEffects", func(st store.Store) (none, error) { return none{}, st.ReleaseEffects(w.ctx, by, []store.Settlement{s}) })
}

// byEffect puts what stands for some effects in the order of their ids.
func byEffect(list []store.Settled, err error) ([]store.Settled, error) {
	return sortedBy(list, err)(func(s store.Settled) string { return s.Effect.ID })
}

func actRecoverEffects(w *twin) {
	if pick(w, "lapse", true, false) {
		w.advance(time.Minute)
	}
	_, _ = ask(w, "RecoverEffects", func(s store.Store) ([]store.Settled, error) { return byEffect(s.RecoverEffects(w.ctx, 100)) })
}

func actLeaseLookups(w *twin) {
	if pick(w, "lapse", true, false) {
		w.advance(pick(w, "time", 10*time.Second, 2*time.Minute))
	}
	by, lease := w.dispatcher(), pick(w, "for", time.Minute, 10*time.Second)
	leased, _ := ask(w, "LeaseLookups", func(s store.Store) ([]store.LeasedEffect, error) {
		return sortedBy(s.LeaseLookups(w.ctx, by, lease, 100))(func(e store.LeasedEffect) string { return e.ID })
	})
	w.looks = append(w.looks, leased...)
}

func actSettleLookup(w *twin) {
	e := recent(w, "leased", w.looks, w.leasedStill)
	l := store.LookupResult{Tenant: e.Tenant, RunID: e.RunID, EffectID: e.ID, Version: e.Version, Who: lanes, Next: pick(w, "next", 0, time.Minute, -1),
		State: pick(w, "state", "found", "absent", "absent", "proved_absent", "repeatable", "unclear", "strange"), ProviderID: pick(w, "provider id", "", "found-1")}
	by := pick(w, "by", e.LeaseOwner, e.LeaseOwner, e.LeaseOwner, "d3")
	_, _ = ask(w, "SettleLookup", func(s store.Store) (store.Settled, error) { return s.SettleLookup(w.ctx, by, l) })
}

func actResolveEffect(w *twin) {
	e := w.someEffect(holdpoint.EffectUnknown)
	v := store.EffectVerdict{Tenant: e.Tenant, EffectID: e.ID, ProviderID: pick(w, "provider id", "", "told-1"), ReasonText: []byte("why"), Who: operator,
		Verdict: pick(w, "verdict", holdpoint.VerdictSent, holdpoint.VerdictNotSent, holdpoint.VerdictNotSent, holdpoint.VerdictAbandon, "perhaps")}
	_, _ = ask(w, "ResolveEffect", func(s store.Store) (store.Settled, error) { return s.ResolveEffect(w.ctx, v) })
}

func actCancelEffect(w *twin) {
	e := w.someEffect(holdpoint.EffectPending, holdpoint.EffectSending)
	_, _ = ask(w, "CancelEffect", func(s store.Store) (store.Settled, error) {
		return s.CancelEffect(w.ctx, e.Tenant, e.ID, []byte("why"), operator)
	})
}

func actScheduleLookup(w *twin) {
	e := w.someEffect(holdpoint.EffectUnknown)
	_, _ = ask(w, "ScheduleLookup", func(s store.Store) (holdpoint.Effect, error) {
		return s.ScheduleLookup(w.ctx, e.Tenant, e.ID, operator)
	})
}

func actHoldEffects(w *twin) {
	ids := []string{w.someEffect(holdpoint.EffectPending).ID, w.someEffect(holdpoint.EffectPending).ID, "effect-none"}
	tenant, hold := w.tenant(), pick(w, "hold", holdpoint.HoldQuota, holdpoint.HoldAuthority, holdpoint.HoldConfiguration, holdpoint.HoldExpired)
	_, _ = ask(w, "HoldEffects", func(s store.Store) (int, error) { return s.HoldEffects(w.ctx, tenant, ids, hold, lanes) })
}

func actCloseExpired(w *twin) {
	if pick(w, "lapse", true, false) { // and what is late is held
		w.advance(time.Hour)
		actLeaseEffects(w)
	}
	tenant, keep := w.tenant(), pick(w, "keep", map[string]time.Duration{"": 0}, map[string]time.Duration{"": time.Hour, "refund": time.Minute}, map[string]time.Duration{"order": 0}, nil)
	_, _ = ask(w, "CloseExpired", func(s store.Store) ([]store.Settled, error) {
		return byEffect(s.CloseExpired(w.ctx, tenant, keep, 100))
	})
}

func actEffectByID(w *twin) {
	e, tenant := w.someEffect(), w.tenant()
	_, _ = ask(w, "EffectByID", func(s store.Store) (pair[holdpoint.Effect, []holdpoint.Attempt], error) {
		return two(s.EffectByID(w.ctx, tenant, e.ID))
	})
}

func actFindEffects(w *twin) {
	f := store.EffectFilter{Tenant: w.tenant(), RunID: pick(w, "run", "", "", w.someRun().ID), State: pick(w, "state", "", "", holdpoint.EffectPending, holdpoint.EffectUnknown),
		Held: pick(w, "held", false, true), Cursor: pick(w, "cursor", "", "", w.someEffect().ID), Limit: pick(w, "limit", 0, 1, 2)}
	_, _ = ask(w, "FindEffects", func(s store.Store) (pair[[]holdpoint.Effect, string], error) { return two(s.FindEffects(w.ctx, f)) })
}

func actFirstForTarget(w *twin) {
	target, run := pick(w, "target", "target0", "target1"), w.someRun().ID
	_, _ = ask(w, "FirstForTarget", func(s store.Store) (bool, error) {
		return s.FirstForTarget(w.ctx, modelTenants[0], typeFor(target), target, run)
	})
}

// typeFor is the type of the effects that a plan sends to a target.
func typeFor(target string) string {
	if target == "target0" {
		return "mail"
	}
	return "note"
}
