package storetest

import (
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/internal/store"
)

func readEffect(f *fixture, w *walked) (holdpoint.EffectState, int64) {
	e := f.effect(w.effect)
	return e.State, e.Version
}

// sending leases an effect and begins a proved attempt.
var sending = event{name: "lease", triggers: []string{"lease"}, fire: func(f *fixture, w *walked) error {
	for _, e := range f.lease(1000) {
		if e.ID != w.effect {
			continue // of a row that has been walked
		}
		a := f.attempt(e)
		a.ProofUntil = f.now().Add(time.Hour)
		begun, err := f.BeginAttempts(f.ctx, owner, []store.AttemptBegin{a})
		require.NoError(f.t, err)
		require.Len(f.t, begun, 1)
		w.begun = begun[0]
	}
	return nil
}}

// answers settles the attempt that was begun last.
func answers(name, trigger string, result holdpoint.Result, to holdpoint.EffectState, also ...string) event {
	return event{name: name, triggers: append(also, string(holdpoint.EffectSending)+":"+trigger), fire: func(f *fixture, w *walked) error {
		s := f.outcomeOf(w.begun, result, to, trigger)
		s.EffectID, s.RunID = w.effect, w.fence.RunID
		if s.AttemptID == "" {
			s.AttemptID = "none"
		}
		_, err := f.SettleAttempts(f.ctx, owner, []store.Settlement{s})
		return err
	}}
}

var (
	accepts = func() event {
		e := answers("accept", "accept", holdpoint.Accepted, holdpoint.EffectCompleted, "pending:doubt", "found")
		e.twice = true
		return e
	}()
	doubts   = answers("doubt", "doubt", holdpoint.Unclear, holdpoint.EffectUnknown)
	recovers = event{name: "recover", triggers: []string{"sending:retry", "sending:doubt"}, fire: func(f *fixture, _ *walked) error {
		f.advance(2 * time.Minute)
		_, err := f.RecoverEffects(f.ctx, 1000)
		return err
	}}
	cancelsEffect = event{name: "cancel", triggers: []string{"end"}, fire: func(f *fixture, w *walked) error {
		_, err := f.CancelEffect(f.ctx, f.tenant, w.effect, nil, operator)
		return err
	}}
	looksUp = func(state, trigger string) event {
		return event{name: "look-up " + state, triggers: []string{trigger}, fire: func(f *fixture, w *walked) error {
			f.advance(2 * time.Minute)
			leased, err := f.LeaseLookups(f.ctx, owner, time.Minute, 1000)
			require.NoError(f.t, err)
			for _, e := range leased {
				if e.ID != w.effect {
					continue
				}
				if _, err := f.SettleLookup(f.ctx, owner, store.LookupResult{Tenant: e.Tenant, RunID: e.RunID, EffectID: e.ID, Version: e.Version, State: state, Who: lanes}); err != nil {
					return err
				}
			}
			return nil
		}}
	}
	verdict = func(v holdpoint.Verdict) event {
		return event{name: "verdict " + string(v), triggers: []string{string(v)}, fire: func(f *fixture, w *walked) error {
			_, err := f.ResolveEffect(f.ctx, store.EffectVerdict{Tenant: f.tenant, EffectID: w.effect, Verdict: v, Who: operator})
			return err
		}}
	}
	retries = answers("retry", "retry", holdpoint.Unclear, holdpoint.EffectPending)
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

var effectStates = map[holdpoint.EffectState][]reach{
	holdpoint.EffectPending:   {queued, again, notSent},
	holdpoint.EffectSending:   {begun, repeated},
	holdpoint.EffectUnknown:   {lost, crashed},
	holdpoint.EffectCompleted: {begun.then(accepts), lost.then(verdict(holdpoint.VerdictSent))},
	holdpoint.EffectFailed:    {queued.then(cancelsEffect), lost.then(verdict(holdpoint.VerdictAbandon))},
}

var effectEvents = []event{sending, doubts, retries, answers("refuse", "refuse", holdpoint.Rejected, holdpoint.EffectFailed), recovers, cancelsEffect,
	accepts, answers("accept without a reference", "doubt", holdpoint.Accepted, holdpoint.EffectUnknown, "pending:doubt"), looksUp("found", "found"), looksUp("proved_absent", "absent"),
	verdict(holdpoint.VerdictSent), verdict(holdpoint.VerdictNotSent), verdict(holdpoint.VerdictAbandon)}
