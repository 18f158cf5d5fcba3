package storetest

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/internal/store"
)

func testBegin(t *testing.T, open func(testing.TB, func() time.Time) store.Store) {
	t.Run("the attempt row is committed with its deadline", func(t *testing.T) {
		f := newFixture(t, open)
		f.switchOn()
		f.released("k", "mail")
		e := f.lease(1)[0]
		a := f.attempt(e)
		begun, err := f.BeginAttempts(f.ctx, owner, []store.AttemptBegin{a})
		require.NoError(t, err)
		require.Len(t, begun, 1)
		require.Equal(t, holdpoint.Attempt{ID: a.ID, EffectID: e.ID, RunID: e.RunID, Number: 1, BegunAt: f.now(), SendBefore: f.now().Add(10 * time.Second), WireHash: "wire"}, begun[0].Attempt)
		require.Equal(t, e.Version+1, begun[0].Version)
		now, attempts, err := f.EffectByID(f.ctx, f.tenant, e.ID)
		require.NoError(t, err)
		require.Equal(t, []holdpoint.Attempt{begun[0].Attempt}, attempts)
		require.Equal(t, []any{1, "wire", begun[0].SendBefore, f.now()}, []any{now.Attempts, now.WireHash, *now.SendBefore, *now.FirstAttemptAt})

		again, err := f.BeginAttempts(f.ctx, owner, []store.AttemptBegin{a})
		require.NoError(t, err)
		require.Equal(t, begun, again, "a lost answer is given again")
		require.Empty(t, f.tryBegin(e), "one lease, one attempt")
		require.Equal(t, 1, count(f.kinds(e.RunID), "attempt.begun"))
	})
	t.Run("only the live lease begins", func(t *testing.T) {
		f := newFixture(t, open)
		f.switchOn()
		f.released("k", "mail")
		e := f.lease(1)[0]
		before := f.record(e.RunID)
		a := f.attempt(e)
		for name, c := range map[string]struct {
			owner  string
			change func(*store.AttemptBegin)
		}{
			"another owner":   {"dispatcher-2", func(*store.AttemptBegin) {}},
			"another version": {owner, func(a *store.AttemptBegin) { a.Version-- }},
			"a later version": {owner, func(a *store.AttemptBegin) { a.Version++ }},
			"another run":     {owner, func(a *store.AttemptBegin) { a.RunID = "none" }},
			"another tenant":  {owner, func(a *store.AttemptBegin) { a.Tenant = "other" }},
			"another effect":  {owner, func(a *store.AttemptBegin) { a.EffectID = "none" }},
		} {
			b := a
			c.change(&b)
			begun, err := f.BeginAttempts(f.ctx, c.owner, []store.AttemptBegin{b})
			require.NoError(t, err)
			require.Empty(t, begun, name)
			require.Equal(t, before, f.record(e.RunID), name)
		}
		f.advance(time.Minute)
		require.Empty(t, f.tryBegin(e), "the lease has expired")
		require.Empty(t, f.record(e.RunID).Attempts)
	})
	t.Run("switched off in between", func(t *testing.T) {
		f := newFixture(t, open)
		f.switchOn()
		for _, scope := range []string{"global", "tenant", "workflow:refund", "connector:mailer", "type:mail"} {
			f.released(scope, "mail")
			e := f.lease(1)[0]
			flip(t, f.Store, f.tenant, false, scope)
			require.Empty(t, f.tryBegin(e), scope)
			rec := f.record(e.RunID)
			require.Equal(t, holdpoint.EffectPending, rec.Effects[0].State)
			require.Empty(t, rec.Attempts)
			require.Equal(t, "effect.released", tail(f.kinds(e.RunID), 1)[0])
			flip(t, f.Store, f.tenant, true, scope)
			f.advance(time.Second)
			f.begin(f.lease(1)[0])
		}
	})
	t.Run("past its time in between", func(t *testing.T) {
		f := newFixture(t, open)
		f.switchOn()
		f.released("k", "mail")
		f.advance(time.Hour - time.Second)
		e := f.lease(1)[0]
		f.advance(time.Second)
		require.Empty(t, f.tryBegin(e))
		require.Equal(t, holdpoint.HoldExpired, f.effect(e.ID).Hold)
	})
	t.Run("what is possibly committed is repeated only inside its proof and with the same bytes", func(t *testing.T) {
		for name, c := range map[string]struct {
			change func(f *fixture, a *store.AttemptBegin)
			want   holdpoint.EffectState
		}{
			"proved":              {func(f *fixture, a *store.AttemptBegin) { a.ProofUntil = f.now().Add(time.Minute) }, holdpoint.EffectSending},
			"not proved":          {func(*fixture, *store.AttemptBegin) {}, holdpoint.EffectUnknown},
			"proof ends too soon": {func(f *fixture, a *store.AttemptBegin) { a.ProofUntil = f.now().Add(9 * time.Second) }, holdpoint.EffectUnknown},
			"other bytes": {func(f *fixture, a *store.AttemptBegin) { a.ProofUntil, a.WireHash = f.now().Add(time.Minute), "other" },
				holdpoint.EffectUnknown},
		} {
			f := newFixture(t, open)
			f.switchOn()
			f.released("k", "mail")
			f.ambiguous(f.lease(1)[0], holdpoint.EffectPending)
			e := f.lease(1)[0]
			a := f.attempt(e)
			c.change(f, &a)
			begun, err := f.BeginAttempts(f.ctx, owner, []store.AttemptBegin{a})
			require.NoError(t, err)
			require.Equal(t, c.want == holdpoint.EffectSending, len(begun) == 1, name)
			require.Equal(t, c.want, f.effect(e.ID).State, name)
			require.True(t, f.effect(e.ID).PossiblyCommitted, name)
		}
	})
	t.Run("a batch begins what it may", func(t *testing.T) {
		f := newFixture(t, open)
		f.switchOn()
		for i := range 5 {
			f.released(fmt.Sprint("k", i), "a", "b")
		}
		var list []store.AttemptBegin
		for i, e := range f.lease(10) {
			a := f.attempt(e)
			if i == 3 {
				a.Version--
			}
			list = append(list, a)
		}
		begun, err := f.BeginAttempts(f.ctx, owner, list)
		require.NoError(t, err)
		require.Len(t, begun, 9)
		inFlight, err := f.InFlight(f.ctx, f.tenant)
		require.NoError(t, err)
		require.Len(t, inFlight, 9)
		begun, err = f.BeginAttempts(f.ctx, owner, nil)
		require.NoError(t, err)
		require.Empty(t, begun)
	})
}

func testSettle(t *testing.T, open func(testing.TB, func() time.Time) store.Store) {
	// another begins an attempt of a new run, with a proof.
	another := func(f *fixture, key string) store.BegunAttempt {
		f.t.Helper()
		f.released(key, "mail")
		a := f.attempt(f.lease(1)[0])
		a.ProofUntil = f.now().Add(time.Minute)
		begun, err := f.BeginAttempts(f.ctx, owner, []store.AttemptBegin{a})
		require.NoError(f.t, err)
		require.Len(f.t, begun, 1)
		return begun[0]
	}
	start := func(t *testing.T) (*fixture, store.BegunAttempt) {
		f := newFixture(t, open)
		f.switchOn()
		return f, another(f, "k")
	}
	t.Run("accepted", func(t *testing.T) {
		f, b := start(t)
		f.advance(time.Second)
		s := f.accepted(b)
		s.Messages = []store.Message{f.newMessage(b.RunID)}
		got := f.settle(s)
		require.Equal(t, holdpoint.EffectCompleted, got.Effect.State)
		require.Equal(t, "provider-"+b.EffectID, got.Effect.ProviderID)
		require.True(t, got.RunEnded)
		require.Equal(t, holdpoint.RunCompleted, got.Run.State)
		require.Equal(t, f.now(), *got.Run.EndedAt)
		rec := f.record(b.RunID)
		require.Equal(t, holdpoint.Accepted, rec.Attempts[0].Result)
		require.Equal(t, []any{201, f.now()}, []any{rec.Attempts[0].Status, *rec.Attempts[0].SettledAt})
		require.Len(t, rec.Messages, 2)
		require.Equal(t, []string{"attempt.begun", "attempt.settled", "effect.completed", "run.completed"}, tail(f.kinds(b.RunID), 4))

		again := f.settle(s)
		require.Equal(t, got.Effect, again.Effect)
		require.Equal(t, got.Run, again.Run)
		require.False(t, again.RunEnded)
		require.False(t, again.Lost)
		require.Equal(t, rec, f.record(b.RunID), "settled once")
	})
	t.Run("outcomes", func(t *testing.T) {
		f := newFixture(t, open)
		f.switchOn()
		for name, c := range map[string]struct {
			result   holdpoint.Result
			to       holdpoint.EffectState
			trigger  string
			change   func(*store.Settlement)
			want     holdpoint.EffectState
			possibly bool
		}{
			"provably not accepted":        {holdpoint.Rejected, holdpoint.EffectPending, "retry", nil, holdpoint.EffectPending, false},
			"definite refusal":             {holdpoint.Rejected, holdpoint.EffectFailed, "refuse", nil, holdpoint.EffectFailed, false},
			"ambiguous with a proof":       {holdpoint.Unclear, holdpoint.EffectPending, "retry", nil, holdpoint.EffectPending, true},
			"ambiguous":                    {holdpoint.Unclear, holdpoint.EffectUnknown, "doubt", nil, holdpoint.EffectUnknown, true},
			"ambiguous, called a failure":  {holdpoint.Unclear, holdpoint.EffectFailed, "refuse", nil, holdpoint.EffectUnknown, true},
			"no result, called a failure":  {"", holdpoint.EffectFailed, "refuse", nil, holdpoint.EffectUnknown, true},
			"accepted without reference":   {holdpoint.Accepted, holdpoint.EffectUnknown, "doubt", nil, holdpoint.EffectUnknown, true},
			"accepted, called a retry":     {holdpoint.Accepted, holdpoint.EffectPending, "retry", nil, holdpoint.EffectUnknown, true},
			"refused, doubted by policy":   {holdpoint.Rejected, holdpoint.EffectFailed, "refuse", func(s *store.Settlement) { s.PossiblyCommitted = true }, holdpoint.EffectUnknown, true},
			"budget over":                  {holdpoint.Rejected, holdpoint.EffectFailed, "end", func(s *store.Settlement) { s.Reason = "budget" }, holdpoint.EffectFailed, false},
			"budget over, after ambiguity": {holdpoint.Unclear, holdpoint.EffectFailed, "end", func(s *store.Settlement) { s.Reason = "budget" }, holdpoint.EffectUnknown, true},
			"held":                         {holdpoint.Rejected, holdpoint.EffectPending, "retry", func(s *store.Settlement) { s.Hold = holdpoint.HoldQuota }, holdpoint.EffectPending, false},
		} {
			b := another(f, name)
			s := f.outcomeOf(b, c.result, c.to, c.trigger)
			s.Outcome.Class, s.Next = holdpoint.ClassThrottled, 20*time.Second
			if c.change != nil {
				c.change(&s)
			}
			got := f.settle(s)
			require.False(t, got.Lost, name)
			require.Equal(t, c.want, got.Effect.State, name)
			require.Equal(t, c.possibly, got.Effect.PossiblyCommitted, name)
			require.Greater(t, got.Effect.Version, b.Version, name)
			require.Equal(t, c.want == holdpoint.EffectFailed, got.RunEnded, name)
			require.Equal(t, got.Effect, f.effect(b.EffectID), name)
			require.Equal(t, 1, got.Effect.Spent, name)
			require.Equal(t, s.Hold, got.Effect.Hold, name)
			switch c.want {
			case holdpoint.EffectPending:
				require.Equal(t, f.now().Add(20*time.Second), *got.Effect.NextAttemptAt, name)
			case holdpoint.EffectUnknown:
				require.False(t, got.Effect.NextLookupAt.Before(b.SendBefore), "never before the write deadline")
			}
		}
	})
	t.Run("without a proof an ambiguous attempt is never pending", func(t *testing.T) {
		f := newFixture(t, open)
		f.switchOn()
		f.released("k", "mail")
		got := f.settle(f.outcomeOf(f.begin(f.lease(1)[0]), holdpoint.Unclear, holdpoint.EffectPending, "retry"))
		require.Equal(t, holdpoint.EffectUnknown, got.Effect.State)
	})
	t.Run("no look-up asked for", func(t *testing.T) {
		f, b := start(t)
		s := f.outcomeOf(b, holdpoint.Unclear, holdpoint.EffectUnknown, "doubt")
		s.Next = -1
		require.Nil(t, f.settle(s).Effect.NextLookupAt)
	})
	t.Run("refused moves", func(t *testing.T) {
		f, b := start(t)
		before := f.record(b.RunID)
		for _, s := range []store.Settlement{
			f.outcomeOf(b, holdpoint.Rejected, holdpoint.EffectCompleted, "accept"),
			f.outcomeOf(b, holdpoint.Rejected, holdpoint.EffectPending, "accept"),
			f.outcomeOf(b, holdpoint.Rejected, holdpoint.EffectSending, "lease"),
		} {
			_, err := f.SettleAttempts(f.ctx, owner, []store.Settlement{s})
			requireCode(t, holdpoint.CodeInternal, err)
			require.Equal(t, before, f.record(b.RunID))
		}
		unknown := f.accepted(b)
		unknown.AttemptID = "none"
		_, err := f.SettleAttempts(f.ctx, owner, []store.Settlement{unknown})
		requireCode(t, holdpoint.CodeNotFound, err)
	})
	t.Run("an outcome that is not accepted needs the lease", func(t *testing.T) {
		for name, change := range map[string]func(s *store.Settlement) string{
			"another owner":   func(*store.Settlement) string { return "dispatcher-2" },
			"another version": func(s *store.Settlement) string { s.Version--; return owner },
		} {
			f, b := start(t)
			s := f.outcomeOf(b, holdpoint.Rejected, holdpoint.EffectFailed, "refuse")
			by := change(&s)
			got, err := f.SettleAttempts(f.ctx, by, []store.Settlement{s})
			require.NoError(t, err)
			require.True(t, got[0].Lost, name)
			require.Equal(t, holdpoint.EffectSending, f.effect(b.EffectID).State, name)
			require.Equal(t, holdpoint.Rejected, f.record(b.RunID).Attempts[0].Result, "recorded all the same")
			require.Equal(t, "attempt.late_answer", tail(f.kinds(b.RunID), 1)[0])
		}
	})
	t.Run("the last of many effects ends the run once", func(t *testing.T) {
		f := newFixture(t, open)
		f.switchOn()
		for i := range 10 {
			f.released(fmt.Sprint("k", i), "a", "b", "c")
			leased := f.lease(10)
			require.Len(t, leased, 3)
			ended := 0
			for _, r := range parallel(3, func(i int) ([]store.Settled, error) {
				b, err := f.BeginAttempts(f.ctx, owner, []store.AttemptBegin{f.attempt(leased[i])})
				if err != nil || len(b) != 1 {
					return nil, fmt.Errorf("%d begun: %w", len(b), err)
				}
				return f.SettleAttempts(f.ctx, owner, []store.Settlement{f.accepted(b[0])})
			}) {
				require.NoError(t, r.err)
				if r.value[0].RunEnded {
					ended++
				}
			}
			require.Equal(t, 1, ended)
			require.Equal(t, holdpoint.RunCompleted, f.record(leased[0].RunID).Run.State)
			require.Equal(t, 1, count(f.kinds(leased[0].RunID), "run.completed"))
		}
	})
}

func testRecover(t *testing.T, open func(testing.TB, func() time.Time) store.Store) {
	recovered := func(f *fixture) []store.Settled {
		f.t.Helper()
		all, err := f.RecoverEffects(f.ctx, 10)
		require.NoError(f.t, err)
		return all
	}
	start := func(t *testing.T) (*fixture, store.LeasedEffect) {
		f := newFixture(t, open)
		f.switchOn()
		f.released("k", "mail")
		return f, f.lease(1)[0]
	}
	t.Run("a live lease stays", func(t *testing.T) {
		f, e := start(t)
		f.advance(time.Minute - time.Microsecond)
		require.Empty(t, recovered(f))
		f.begin(e)
	})
	t.Run("nothing begun: pending again", func(t *testing.T) {
		f, e := start(t)
		f.advance(time.Minute)
		got := recovered(f)
		require.Len(t, got, 1)
		require.Equal(t, holdpoint.EffectPending, got[0].Effect.State)
		require.False(t, got[0].Effect.PossiblyCommitted)
		require.Empty(t, f.tryBegin(e))
		second := f.lease(1)
		require.Len(t, second, 1)
		f.begin(second[0])
		require.Empty(t, f.tryBegin(e))
	})
	t.Run("an open attempt: unknown, looked up after its deadline", func(t *testing.T) {
		f, e := start(t)
		a := f.attempt(e)
		a.SendBefore = 3 * time.Minute // the lease is lengthened to it
		begun, err := f.BeginAttempts(f.ctx, owner, []store.AttemptBegin{a})
		require.NoError(t, err)
		f.advance(time.Minute)
		require.Empty(t, recovered(f))
		f.advance(2 * time.Minute)
		got := recovered(f)
		require.Len(t, got, 1)
		require.Equal(t, holdpoint.EffectUnknown, got[0].Effect.State)
		require.True(t, got[0].Effect.PossiblyCommitted)
		require.Equal(t, holdpoint.ClassCrash, got[0].Effect.FailureClass)
		require.False(t, got[0].Effect.NextLookupAt.Before(begun[0].SendBefore))
		inFlight, err := f.InFlight(f.ctx, f.tenant)
		require.NoError(t, err)
		require.Empty(t, inFlight)
		require.Empty(t, recovered(f))
		require.Empty(t, f.lease(10), "not sent again")
	})
	t.Run("a late answer completes", func(t *testing.T) {
		f, e := start(t)
		b := f.begin(e)
		f.advance(time.Minute)
		recovered(f)
		s := f.accepted(b)
		s.Late = true
		got := f.settle(s)
		require.False(t, got.Lost)
		require.Equal(t, holdpoint.EffectCompleted, got.Effect.State)
		require.False(t, got.Effect.PossiblyCommitted)
		require.True(t, got.RunEnded)
		rec := f.record(e.RunID)
		require.Equal(t, holdpoint.Accepted, rec.Attempts[0].Result)
		require.Equal(t, holdpoint.ClassNone, rec.Attempts[0].Class)
		require.Equal(t, []string{"attempt.late_answer", "effect.completed", "run.completed"}, tail(f.kinds(e.RunID), 3))
		require.Equal(t, holdpoint.EffectCompleted, f.settle(s).Effect.State)
		require.Equal(t, rec, f.record(e.RunID))
	})
	t.Run("a late refusal is recorded and settles nothing", func(t *testing.T) {
		f, e := start(t)
		b := f.begin(e)
		f.advance(time.Minute)
		recovered(f)
		got := f.settle(f.outcomeOf(b, holdpoint.Rejected, holdpoint.EffectFailed, "refuse"))
		require.True(t, got.Lost)
		require.Equal(t, holdpoint.EffectUnknown, f.effect(e.ID).State)
		require.Equal(t, holdpoint.Rejected, f.record(e.RunID).Attempts[0].Result)
	})
	t.Run("a late answer after a wrong absence is not sent again", func(t *testing.T) {
		f, e := start(t)
		b := f.begin(e)
		f.advance(time.Minute)
		recovered(f)
		require.Equal(t, holdpoint.EffectPending, f.lookup("proved_absent", time.Minute).Effect.State)
		got := f.settle(f.accepted(b))
		require.Equal(t, holdpoint.EffectCompleted, got.Effect.State)
		require.True(t, got.RunEnded)
		f.advance(time.Hour)
		require.Empty(t, f.lease(10))
	})
	t.Run("a late answer while a second attempt is open", func(t *testing.T) {
		f, e := start(t)
		first := f.begin(e)
		f.advance(time.Minute)
		recovered(f)
		f.lookup("proved_absent", 0)
		second := f.begin(f.lease(1)[0])
		require.Equal(t, 2, second.Number)
		require.True(t, f.settle(f.accepted(first)).RunEnded)
		inFlight, err := f.InFlight(f.ctx, f.tenant)
		require.NoError(t, err)
		require.Len(t, inFlight, 1)
		f.advance(time.Minute)
		require.Empty(t, recovered(f))
		inFlight, err = f.InFlight(f.ctx, f.tenant)
		require.NoError(t, err)
		require.Empty(t, inFlight, "nobody came back for the second attempt")
		require.False(t, f.settle(f.accepted(second)).RunEnded)
		require.Equal(t, holdpoint.Accepted, f.record(e.RunID).Attempts[1].Result)
	})
	t.Run("a late answer without a reference while a second attempt is open", func(t *testing.T) {
		f, e := start(t)
		first := f.begin(e)
		f.advance(time.Minute)
		recovered(f)
		f.lookup("proved_absent", 0)
		second := f.begin(f.lease(1)[0])
		require.True(t, f.settle(f.outcomeOf(first, holdpoint.Accepted, holdpoint.EffectUnknown, "doubt")).Lost)
		got := f.settle(f.outcomeOf(second, holdpoint.Rejected, holdpoint.EffectFailed, "refuse"))
		require.Equal(t, holdpoint.EffectUnknown, got.Effect.State)
		require.False(t, got.RunEnded)
	})
	t.Run("two recoverers", func(t *testing.T) {
		f := newFixture(t, open)
		f.switchOn()
		for i := range 10 {
			f.released(fmt.Sprint("k", i), "a", "b")
		}
		for _, e := range f.lease(20) {
			f.begin(e)
		}
		f.advance(time.Minute)
		seen := map[string]int{}
		for rounds := 0; len(seen) < 20 && rounds < 50; rounds++ {
			for _, r := range parallel(4, func(int) ([]store.Settled, error) { return f.RecoverEffects(f.ctx, 6) }) {
				require.NoError(t, r.err)
				for _, s := range r.value {
					seen[s.Effect.ID]++
				}
			}
		}
		require.Len(t, seen, 20)
		for id, n := range seen {
			require.Equal(t, 1, n, id)
		}
	})
}

func testRelease(t *testing.T, open func(testing.TB, func() time.Time) store.Store) {
	f := newFixture(t, open)
	f.switchOn()
	for name, c := range map[string]struct {
		s    store.Settlement
		want holdpoint.EffectState
	}{
		"back":               {store.Settlement{State: holdpoint.EffectPending, Trigger: "retry", Next: time.Second}, holdpoint.EffectPending},
		"held":               {store.Settlement{State: holdpoint.EffectPending, Trigger: "retry", Hold: holdpoint.HoldConfiguration}, holdpoint.EffectPending},
		"refused locally":    {store.Settlement{State: holdpoint.EffectFailed, Trigger: "refuse", Outcome: holdpoint.Outcome{Class: holdpoint.ClassInvalidData}}, holdpoint.EffectFailed},
		"budget over":        {store.Settlement{State: holdpoint.EffectFailed, Trigger: "end", Reason: "budget"}, holdpoint.EffectFailed},
		"no longer provable": {store.Settlement{State: holdpoint.EffectUnknown, Trigger: "doubt", PossiblyCommitted: true}, holdpoint.EffectUnknown},
	} {
		f.released(name, "mail")
		e := f.lease(1)[0]
		s := c.s
		s.Tenant, s.RunID, s.EffectID, s.Version, s.Who = e.Tenant, e.RunID, e.ID, e.Version, lanes
		require.NoError(t, f.ReleaseEffects(f.ctx, owner, []store.Settlement{s}))
		got := f.effect(e.ID)
		require.Equal(t, c.want, got.State, name)
		require.Equal(t, s.Hold, got.Hold, name)
		require.Zero(t, got.Attempts, name)
		require.Equal(t, c.want == holdpoint.EffectFailed, f.record(e.RunID).Run.State.Terminal())
		require.NoError(t, f.ReleaseEffects(f.ctx, owner, []store.Settlement{s}), "again")
		require.Equal(t, got, f.effect(e.ID), name)
	}
	t.Run("what has begun is not released", func(t *testing.T) {
		f.released("k", "mail")
		b := f.begin(f.lease(1)[0])
		s := f.outcomeOf(b, holdpoint.Rejected, holdpoint.EffectPending, "retry")
		requireCode(t, holdpoint.CodeInternal, f.ReleaseEffects(f.ctx, owner, []store.Settlement{s}))
		s.AttemptID = ""
		require.NoError(t, f.ReleaseEffects(f.ctx, owner, []store.Settlement{s}))
		require.Equal(t, holdpoint.EffectSending, f.effect(b.EffectID).State)
	})
}
