package storetest

import (
	"slices"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/internal/store"
)

// leases leases an effect.
var leases = event{name: "lease", triggers: []string{"lease"}, fire: func(f *fixture, w *walked) error {
	for _, e := range f.lease(1000) {
		if e.ID == w.effect { // the others are of rows that have been walked
			w.leased = e
			return nil
		}
	}
	return errLost
}}

// sending leases an effect and begins a proved attempt.
var sending = event{name: "send", triggers: []string{"lease"}, fire: func(f *fixture, w *walked) error {
	if err := leases.fire(f, w); err != nil {
		return err
	}
	a := f.attempt(w.leased)
	a.ProofUntil = f.now().Add(time.Hour)
	begun, err := f.BeginAttempts(f.ctx, owner, []store.AttemptBegin{a})
	require.NoError(f.t, err)
	require.Len(f.t, begun, 1)
	w.begun = begun[0]
	return nil
}}

// unproved leases an effect and begins without a proof: what is possibly committed may not be repeated.
var unproved = event{name: "send without a proof", triggers: []string{"lease", "lease+doubt"}, fire: func(f *fixture, w *walked) error {
	if err := leases.fire(f, w); err != nil {
		return err
	}
	f.tryBegin(w.leased)
	return nil
}}

// answers settles the attempt that was begun last, as owner by. An answer counts that moves the effect or says that the
// provider accepted; any other is lost, unless its attempt has its answer already.
func answers(by, name string, triggers []string, result holdpoint.Result, to holdpoint.EffectState, trigger string) event {
	return event{name: name, triggers: triggers, tells: []string{"attempt.late_answer"}, fire: func(f *fixture, w *walked) error {
		s := f.outcomeOf(w.begun, result, to, trigger)
		s.EffectID, s.RunID = w.effect, w.fence.RunID
		if s.AttemptID == "" {
			s.AttemptID = "none"
		}
		before, attempts, err := f.EffectByID(f.ctx, f.tenant, w.effect)
		require.NoError(f.t, err)
		open := slices.ContainsFunc(attempts, func(a holdpoint.Attempt) bool {
			return a.ID == s.AttemptID && (a.SettledAt == nil || a.Class == holdpoint.ClassCrash)
		})
		settled, err := f.SettleAttempts(f.ctx, by, []store.Settlement{s})
		if err != nil {
			return err
		}
		counts := settled[0].Effect.Version > before.Version || result == holdpoint.Accepted && to == holdpoint.EffectCompleted
		require.Equal(f.t, open && !counts, settled[0].Lost)
		if settled[0].Lost {
			return errLost
		}
		return nil
	}}
}

// releases gives back what was leased and not begun, or ends or doubts it.
func releases(triggers, trigger string, to holdpoint.EffectState) event {
	return event{name: "release to " + string(to), triggers: []string{triggers}, fire: func(f *fixture, w *walked) error {
		return f.ReleaseEffects(f.ctx, owner, []store.Settlement{{Tenant: f.tenant, RunID: w.fence.RunID, EffectID: w.effect, Version: w.leased.Version,
			State: to, Trigger: trigger, Reason: "budget", Who: lanes}})
	}}
}

var (
	accepts  = answers(owner, "accept", []string{"sending:accept", "pending:doubt+found", "found"}, holdpoint.Accepted, holdpoint.EffectCompleted, "accept")
	doubts   = answers(owner, "doubt", []string{"sending:doubt"}, holdpoint.Unclear, holdpoint.EffectUnknown, "doubt")
	retries  = answers(owner, "retry", []string{"sending:retry"}, holdpoint.Unclear, holdpoint.EffectPending, "retry")
	refuses  = answers(owner, "refuse", []string{"sending:refuse"}, holdpoint.Rejected, holdpoint.EffectFailed, "refuse")
	bare     = answers(owner, "accept without a reference", []string{"sending:doubt", "pending:doubt"}, holdpoint.Accepted, holdpoint.EffectUnknown, "doubt")
	foreign  = answers("dispatcher-2", "refuse as another", nil, holdpoint.Rejected, holdpoint.EffectFailed, "refuse")
	strange  = answers("dispatcher-2", "doubt as another", nil, holdpoint.Unclear, holdpoint.EffectUnknown, "doubt")
	recovers = event{name: "recover", triggers: []string{"sending:retry", "sending:doubt"}, fire: func(f *fixture, _ *walked) error {
		f.advance(2 * time.Minute)
		_, err := f.RecoverEffects(f.ctx, 1000)
		return err
	}}
	cancelsEffect = event{name: "cancel", triggers: []string{"pending:end", "sending:retry+end"}, fire: func(f *fixture, w *walked) error {
		_, err := f.CancelEffect(f.ctx, f.tenant, w.effect, nil, operator)
		return err
	}}
	// looksUp leases and settles a look-up; overtaken, another one has leased it in between, so that the answer is lost.
	looksUp = func(state, trigger string, overtaken bool) event {
		e := event{name: "look-up " + state, triggers: []string{trigger}, leases: overtaken}
		if overtaken {
			e.name, e.triggers = "overtaken "+e.name, nil
		}
		e.fire = func(f *fixture, w *walked) error {
			lease := func() (version int64) {
				f.advance(2 * time.Minute)
				leased, err := f.LeaseLookups(f.ctx, owner, time.Minute, 1000)
				require.NoError(f.t, err)
				for _, e := range leased {
					if e.ID == w.effect {
						version = e.Version
					}
				}
				return version
			}
			version := lease()
			if overtaken {
				lease()
			}
			got, err := f.SettleLookup(f.ctx, owner, store.LookupResult{Tenant: f.tenant, RunID: w.fence.RunID, EffectID: w.effect, Version: version, State: state, Who: lanes})
			require.NoError(f.t, err)
			require.Equal(f.t, version == 0 || overtaken, got.Lost)
			if got.Lost {
				return errLost
			}
			return nil
		}
		return e
	}
	verdict = func(v holdpoint.Verdict) event {
		return event{name: "verdict " + string(v), triggers: []string{string(v)}, fire: func(f *fixture, w *walked) error {
			_, err := f.ResolveEffect(f.ctx, store.EffectVerdict{Tenant: f.tenant, EffectID: w.effect, Verdict: v, Who: operator})
			return err
		}}
	}
	closes = event{name: "close expired", triggers: []string{"pending:end"}, fire: func(f *fixture, _ *walked) error {
		f.advance(2 * time.Hour)
		f.lease(1000) // which holds what is expired
		_, err := f.CloseExpired(f.ctx, f.tenant, map[string]time.Duration{"": 0}, 1000)
		return err
	}}
)

// Pending and sending stand for several states each: with and without an earlier attempt that may have been accepted.
var (
	queued   = walkDecided(holdpoint.DecisionApprove)
	begun    = queued.then(sending)
	again    = begun.then(retries)
	repeated = again.then(sending)
	lost     = begun.then(doubts)
	crashed  = begun.then(recovers)
	notSent  = crashed.then(verdict(holdpoint.VerdictNotSent))
)

var effectTable = table[holdpoint.EffectState]{
	rows: holdpoint.EffectTransitions,
	states: map[holdpoint.EffectState][]reach{
		holdpoint.EffectPending:   {queued, again, notSent},
		holdpoint.EffectSending:   {begun, repeated, queued.then(leases), again.then(leases)},
		holdpoint.EffectUnknown:   {lost, crashed},
		holdpoint.EffectCompleted: {begun.then(accepts), lost.then(verdict(holdpoint.VerdictSent))},
		holdpoint.EffectFailed:    {queued.then(cancelsEffect), lost.then(verdict(holdpoint.VerdictAbandon))},
	},
	events: []event{leases, sending, unproved, accepts, doubts, retries, refuses, bare, foreign, strange, recovers,
		releases("sending:retry", "retry", holdpoint.EffectPending), releases("sending:retry+end", "end", holdpoint.EffectFailed),
		releases("sending:doubt", "doubt", holdpoint.EffectUnknown),
		cancelsEffect, cancels, withdraws, closes,
		looksUp("found", "found", false), looksUp("proved_absent", "absent", false), looksUp("repeatable", "absent", false),
		looksUp("found", "", true), looksUp("proved_absent", "", true), looksUp("repeatable", "", true),
		verdict(holdpoint.VerdictSent), verdict(holdpoint.VerdictNotSent), verdict(holdpoint.VerdictAbandon)},
	read: func(f *fixture, w *walked) (holdpoint.EffectState, int64) {
		e := f.effect(w.effect)
		return e.State, e.Version
	},
	own:    func(w *walked, e holdpoint.Event) bool { return e.Data["effect_id"] == w.effect },
	noVerb: map[string]string{"/release": makes},
}
