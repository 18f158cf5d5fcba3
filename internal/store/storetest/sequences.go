package storetest

import (
	"flag"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/internal/store"
)

// testSequences drives runs of two effects through random sequences of everything that may happen to them, wrong
// settlements and lost workers included, and checks after each step what no sequence may break: the tables of
// transitions, I3, and that a run ends exactly when its last effect does.
func testSequences(t *testing.T, open func(testing.TB, func() time.Time) store.Store) {
	f := newFixture(t, open)
	f.switchOn()
	// One check is some fifty transactions: a few have to do unless the command line asks for a number of its own.
	if checks := flag.Lookup("rapid.checks"); checks.Value.String() == checks.DefValue {
		require.NoError(t, checks.Value.Set("20"))
		t.Cleanup(func() { _ = checks.Value.Set(checks.DefValue) })
	}
	n, last := 0, &sequence{fixture: f}
	rapid.Check(t, func(r *rapid.T) {
		last.finish(r) // what a sequence that failed has left
		n++
		q := &sequence{fixture: f, r: r}
		last = q
		released := f.released(fmt.Sprint("k", n), "a", "b")
		q.run = released.Run.ID
		for _, e := range released.Effects {
			q.effects = append(q.effects, e.ID)
		}
		for i := range rapid.IntRange(4, 14).Draw(r, "steps") {
			q.step(rapid.SampledFrom([]string{"send", "send", "send", "answer", "answer", "late", "crash", "look", "look", "verdict", "cancel", "withdraw", "time", "hold", "close"}).Draw(r, "step"))
			if i%4 == 3 {
				q.check()
			}
		}
		q.check()
		q.finish(r)
		q.check()
		require.True(r, f.record(q.run).Run.State.Terminal())
	})
}

// sequence is one run under test.
type sequence struct {
	*fixture
	r       *rapid.T
	run     string
	effects []string
	open    []store.BegunAttempt // begun and not answered
	late    []store.BegunAttempt // given up by recovery; may still answer
}

func (q *sequence) step(what string) {
	draw := func(list []string, label string) string { return rapid.SampledFrom(list).Draw(q.r, label) }
	id := q.effects[rapid.IntRange(0, 1).Draw(q.r, "effect")]
	switch what {
	case "send":
		for _, e := range q.lease(rapid.IntRange(1, 2).Draw(q.r, "n")) {
			a := q.attempt(e)
			if rapid.Bool().Draw(q.r, "proved") {
				a.ProofUntil = q.now().Add(time.Hour)
			}
			a.WireHash = draw([]string{"wire", "wire", "other"}, "bytes")
			begun, err := q.BeginAttempts(q.ctx, owner, []store.AttemptBegin{a})
			require.NoError(q.r, err)
			q.open = append(q.open, begun...)
		}
	case "answer", "late":
		from := &q.open
		if what == "late" {
			from = &q.late
		}
		if len(*from) == 0 {
			return
		}
		q.settleAny((*from)[0], draw)
		*from = (*from)[1:]
	case "crash":
		q.advance(time.Minute)
		_, err := q.RecoverEffects(q.ctx, 10)
		require.NoError(q.r, err)
		q.late, q.open = append(q.late, q.open...), nil
	case "look":
		leased, err := q.LeaseLookups(q.ctx, owner, time.Second, 1)
		require.NoError(q.r, err)
		for _, e := range leased {
			_, err := q.SettleLookup(q.ctx, owner, store.LookupResult{Tenant: q.tenant, RunID: e.RunID, EffectID: e.ID, Version: e.Version, Next: time.Second,
				State: draw([]string{"found", "absent", "proved_absent", "repeatable", "unclear"}, "state"), Who: lanes})
			require.NoError(q.r, err)
		}
	case "verdict":
		v := holdpoint.Verdict(draw([]string{"sent", "not_sent", "abandon"}, "verdict"))
		_, err := q.ResolveEffect(q.ctx, store.EffectVerdict{Tenant: q.tenant, EffectID: id, Verdict: v, Who: admin})
		q.allowed(err)
	case "cancel":
		_, err := q.CancelEffect(q.ctx, q.tenant, id, nil, admin)
		q.allowed(err)
	case "withdraw":
		if rapid.IntRange(0, 3).Draw(q.r, "rarely") == 0 {
			_, err := q.WithdrawApproval(q.ctx, q.tenant, q.record(q.run).Approvals[0].ID, nil, admin)
			q.allowed(err)
		}
	case "time":
		q.advance(time.Duration(rapid.SampledFrom([]int{1, 5, 20, 30}).Draw(q.r, "seconds")) * time.Second)
	case "hold":
		_, err := q.HoldEffects(q.ctx, q.tenant, []string{id}, holdpoint.HoldQuota, admin)
		require.NoError(q.r, err)
		if rapid.Bool().Draw(q.r, "release") {
			_, err := q.ReleaseConnector(q.ctx, q.tenant, "mailer", "v1", admin)
			require.NoError(q.r, err)
		}
	case "close":
		_, err := q.CloseExpired(q.ctx, q.tenant, map[string]time.Duration{"": 0}, 10)
		require.NoError(q.r, err)
	}
}

// settleAny settles an attempt with an outcome that may contradict the verdict upon it.
func (q *sequence) settleAny(b store.BegunAttempt, draw func([]string, string) string) {
	result := holdpoint.Result(draw([]string{"accepted", "rejected", "unknown", ""}, "result"))
	s := q.outcomeOf(b, result, holdpoint.EffectUnknown, "doubt")
	switch draw([]string{"right", "retry", "refuse", "end", "doubt"}, "verdict upon it") {
	case "right":
		if result == holdpoint.Accepted {
			s = q.accepted(b)
		}
	case "retry":
		s.State, s.Trigger = holdpoint.EffectPending, "retry"
	case "refuse":
		s.State, s.Trigger = holdpoint.EffectFailed, "refuse"
	case "end":
		s.State, s.Trigger = holdpoint.EffectFailed, "end"
	}
	settled, err := q.SettleAttempts(q.ctx, owner, []store.Settlement{s})
	require.NoError(q.r, err)
	if s.State == holdpoint.EffectCompleted {
		require.False(q.r, settled[0].Effect.State.Open(), "accepted is the end, whatever has happened since")
	}
}

// allowed fails unless a verb of a person succeeded or was not allowed now.
func (q *sequence) allowed(err error) {
	if err != nil {
		require.ErrorIs(q.r, err, &holdpoint.Error{Code: holdpoint.CodeNotAllowedNow})
	}
}

// finish ends open effects as a person would, so that the next run does not meet them.
func (q *sequence) finish(r *rapid.T) {
	q.advance(2 * time.Minute)
	_, err := q.RecoverEffects(q.ctx, 10)
	require.NoError(r, err)
	for _, id := range q.effects {
		if q.effect(id).State == holdpoint.EffectPending {
			_, err := q.CancelEffect(q.ctx, q.tenant, id, nil, admin)
			require.NoError(r, err)
		}
		if q.effect(id).State == holdpoint.EffectUnknown {
			_, err := q.ResolveEffect(q.ctx, store.EffectVerdict{Tenant: q.tenant, EffectID: id, Verdict: holdpoint.VerdictAbandon, Who: admin})
			require.NoError(r, err)
		}
		require.False(r, q.effect(id).State.Open())
	}
}

// check is what holds at any moment.
func (q *sequence) check() {
	rec := q.record(q.run)
	open := false
	for _, e := range rec.Effects {
		open = open || e.State.Open()
		if e.PossiblyCommitted && e.State == holdpoint.EffectFailed {
			require.Equal(q.r, "abandoned", e.Reason, "possibly committed fails on a person's word only")
		}
		if e.State != holdpoint.EffectPending {
			require.Empty(q.r, e.Hold, "holds are flags on pending")
		}
	}
	require.Equal(q.r, !open, rec.Run.State.Terminal(), "a run ends with its last open effect")

	// The evidence tells one unbroken story of each effect, within the table and with growing versions.
	state, version := map[string]string{}, map[string]float64{}
	doubtful := map[string]bool{} // an attempt that may have been accepted stands unresolved
	accepted := map[string]bool{} // an accepted one does
	ends := 0
	for i, ev := range q.eventsOf(q.run) {
		require.EqualValues(q.r, i+1, ev.Seq)
		if ev.Type == "run.completed" || ev.Type == "run.failed" {
			ends++
		}
		id, _ := ev.Data["effect_id"].(string)
		if v, ok := ev.Data["version"].(float64); ok && id != "" {
			require.Greater(q.r, v, version[id], ev.Type)
			version[id] = v
		}
		switch ev.Type {
		case "effect.queued":
			state[id] = "pending"
		case "effect.leased":
			require.Equal(q.r, "pending", state[id])
			state[id] = "sending"
		case "attempt.begun":
			require.Equal(q.r, "sending", state[id])
		case "attempt.settled", "attempt.late_answer":
			// What comes late and is no acceptance says no more than was known when its attempt was given up.
			if result := ev.Data["result"]; result == "accepted" || result != "rejected" && ev.Type == "attempt.settled" {
				doubtful[id] = true
			}
			accepted[id] = accepted[id] || ev.Data["result"] == "accepted"
		}
		from, moved := ev.Data["from"].(string)
		trigger, _ := ev.Data["trigger"].(string)
		if id == "" || !moved || trigger == "" {
			continue
		}
		to := ev.Data["to"].(string)
		require.Equal(q.r, state[id], from, ev.Type)
		require.True(q.r, holdpoint.Allowed(holdpoint.EffectTransitions, holdpoint.EffectState(from), holdpoint.EffectState(to), trigger), "%s to %s by %s", from, to, trigger)
		state[id] = to
		switch trigger {
		case "absent", "not_sent", "found", "sent", "accept", "abandon":
			if possibly, _ := ev.Data["possibly_committed"].(bool); !possibly || trigger == "abandon" {
				doubtful[id], accepted[id] = false, false
			}
		}
		if to == "failed" {
			require.False(q.r, doubtful[id], "an effect failed although an attempt may have been accepted")
		}
	}
	for _, e := range rec.Effects {
		require.Equal(q.r, string(e.State), state[e.ID])
		require.LessOrEqual(q.r, version[e.ID], float64(e.Version))
		require.False(q.r, accepted[e.ID] && e.State == holdpoint.EffectPending && !e.PossiblyCommitted, "accepted, and about to be sent again")
	}
	require.LessOrEqual(q.r, ends, 1)
}
