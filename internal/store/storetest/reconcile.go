package storetest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/internal/store"
)

// testReconcile is what becomes of effects in doubt, and of those that people or time take out of the outbox.
func testReconcile(t *testing.T, open func(testing.TB, func() time.Time) store.Store) {
	// doubt gives a fixture with one unknown effect whose look-up is due.
	doubt := func(t *testing.T, slots ...string) (*fixture, holdpoint.Effect) {
		f := newFixture(t, open)
		f.switchOn()
		f.released("k", append([]string{"mail"}, slots...)...)
		e := f.ambiguous(f.lease(1)[0], holdpoint.EffectUnknown)
		f.advance(10 * time.Second)
		return f, e
	}
	t.Run("look-ups start after the write deadline, one at a time", func(t *testing.T) {
		f := newFixture(t, open)
		f.switchOn()
		f.released("k", "mail")
		f.ambiguous(f.lease(1)[0], holdpoint.EffectUnknown)
		due := func(n int) []store.LeasedEffect {
			t.Helper()
			leased, err := f.LeaseLookups(f.ctx, owner, time.Minute, 10)
			require.NoError(t, err)
			require.Len(t, leased, n)
			return leased
		}
		due(0)
		f.advance(10*time.Second - time.Microsecond)
		due(0)
		f.advance(time.Microsecond)
		first := due(1)[0]
		require.Equal(t, []any{[]byte("target"), []byte("payload"), []byte("key"), "k", f.now()},
			[]any{first.Target, first.Payload, first.RunKey, first.RunKeyT, first.Now})
		due(0)
		f.advance(time.Minute)
		second := due(1)[0]
		lost, err := f.SettleLookup(f.ctx, owner, store.LookupResult{Tenant: f.tenant, RunID: first.RunID, EffectID: first.ID, Version: first.Version, State: "proved_absent", Who: lanes})
		require.NoError(t, err)
		require.True(t, lost.Lost, "its lease was taken over")
		require.Equal(t, holdpoint.EffectUnknown, f.effect(first.ID).State)
		got, err := f.SettleLookup(f.ctx, owner, store.LookupResult{Tenant: f.tenant, RunID: first.RunID, EffectID: first.ID, Version: second.Version, State: "found", Who: lanes})
		require.NoError(t, err)
		require.True(t, got.RunEnded)
	})
	t.Run("found", func(t *testing.T) {
		f, e := doubt(t)
		got := f.lookup("found", 0)
		require.Equal(t, holdpoint.EffectCompleted, got.Effect.State)
		require.Equal(t, "found-"+e.ID, got.Effect.ProviderID)
		require.False(t, got.Effect.PossiblyCommitted)
		require.True(t, got.RunEnded)
		require.Equal(t, []string{"lookup.settled", "effect.completed", "run.completed"}, tail(f.kinds(e.RunID), 3))
	})
	t.Run("absent, unclear, absent, absent, proved", func(t *testing.T) {
		f, e := doubt(t)
		for i, c := range []struct {
			state string
			reads int
		}{{"absent", 1}, {"unclear", 0}, {"absent", 1}, {"absent", 2}} {
			got := f.lookup(c.state, time.Minute)
			require.Equal(t, holdpoint.EffectUnknown, got.Effect.State)
			require.Equal(t, []int{i + 1, c.reads}, []int{got.Effect.Lookups, got.Effect.AbsentReads})
			require.Equal(t, f.now().Add(time.Minute), *got.Effect.NextLookupAt)
			f.advance(time.Minute)
		}
		got := f.lookup("proved_absent", 0)
		require.Equal(t, holdpoint.EffectPending, got.Effect.State)
		require.False(t, got.Effect.PossiblyCommitted)
		require.Equal(t, []int{0, 1}, []int{got.Effect.AbsentReads, got.Effect.AbsentResends})
		require.False(t, got.RunEnded)
		second := f.begin(f.lease(1)[0])
		require.Equal(t, 2, second.Number)
		require.Equal(t, e.ProviderKey, f.effect(e.ID).ProviderKey)
	})
	t.Run("repeatable", func(t *testing.T) {
		f, e := doubt(t)
		got := f.lookup("repeatable", 0)
		require.Equal(t, []any{holdpoint.EffectPending, true, holdpoint.HoldNone}, []any{got.Effect.State, got.Effect.PossiblyCommitted, got.Effect.Hold})
		a := f.attempt(f.lease(1)[0])
		a.ProofUntil = f.now().Add(time.Minute)
		begun, err := f.BeginAttempts(f.ctx, owner, []store.AttemptBegin{a})
		require.NoError(t, err)
		require.Len(t, begun, 1)
		require.True(t, f.settle(f.accepted(begun[0])).RunEnded)
		require.False(t, f.effect(e.ID).PossiblyCommitted)

		f, _ = doubt(t)
		f.advance(time.Hour)
		require.Equal(t, holdpoint.HoldExpired, f.lookup("repeatable", 0).Effect.Hold)
	})
	t.Run("no more look-ups until a person asks for one", func(t *testing.T) {
		f, e := doubt(t)
		require.Nil(t, f.lookup("unclear", -1).Effect.NextLookupAt)
		f.advance(time.Hour)
		leased, err := f.LeaseLookups(f.ctx, owner, time.Minute, 10)
		require.NoError(t, err)
		require.Empty(t, leased)
		got, err := f.ScheduleLookup(f.ctx, f.tenant, e.ID, machine)
		require.NoError(t, err)
		require.Equal(t, f.now(), *got.NextLookupAt)
		require.True(t, f.lookup("found", 0).RunEnded)
		_, err = f.ScheduleLookup(f.ctx, f.tenant, e.ID, machine)
		requireCode(t, holdpoint.CodeNotAllowedNow, err)
	})
	t.Run("an asked look-up waits for the write deadline, too", func(t *testing.T) {
		f := newFixture(t, open)
		f.switchOn()
		f.released("k", "mail")
		e := f.ambiguous(f.lease(1)[0], holdpoint.EffectUnknown)
		got, err := f.ScheduleLookup(f.ctx, f.tenant, e.ID, machine)
		require.NoError(t, err)
		require.Equal(t, *e.SendBefore, *got.NextLookupAt)
	})
	t.Run("a late answer overtakes a look-up", func(t *testing.T) {
		f := newFixture(t, open)
		f.switchOn()
		f.released("k", "mail")
		b := f.begin(f.lease(1)[0])
		f.advance(time.Minute)
		_, err := f.RecoverEffects(f.ctx, 10)
		require.NoError(t, err)
		leased, err := f.LeaseLookups(f.ctx, owner, time.Minute, 10)
		require.NoError(t, err)
		require.Len(t, leased, 1)
		require.True(t, f.settle(f.accepted(b)).RunEnded)
		got, err := f.SettleLookup(f.ctx, owner, store.LookupResult{Tenant: f.tenant, RunID: b.RunID, EffectID: b.EffectID, Version: leased[0].Version, State: "proved_absent", Who: lanes})
		require.NoError(t, err)
		require.True(t, got.Lost)
		require.Equal(t, holdpoint.EffectCompleted, f.effect(b.EffectID).State)
	})
	t.Run("past execute_by a proved absence is held", func(t *testing.T) {
		f, e := doubt(t)
		f.advance(time.Hour)
		got := f.lookup("proved_absent", 0)
		require.Equal(t, []any{holdpoint.EffectPending, holdpoint.HoldExpired}, []any{got.Effect.State, got.Effect.Hold})
		require.Empty(t, f.lease(10))
		require.Equal(t, holdpoint.HoldExpired, f.effect(e.ID).Hold)
	})
	t.Run("verdicts", func(t *testing.T) {
		for verdict, c := range map[holdpoint.Verdict]struct {
			late     bool
			want     holdpoint.EffectState
			hold     holdpoint.Hold
			possibly bool
			run      holdpoint.RunState
			reason   holdpoint.Reason
		}{
			holdpoint.VerdictSent:    {false, holdpoint.EffectCompleted, "", false, holdpoint.RunCompleted, ""},
			holdpoint.VerdictNotSent: {true, holdpoint.EffectPending, holdpoint.HoldExpired, false, holdpoint.RunApproved, ""},
			holdpoint.VerdictAbandon: {false, holdpoint.EffectFailed, "", true, holdpoint.RunFailedTerminal, holdpoint.ReasonAbandoned},
		} {
			f, e := doubt(t)
			if c.late {
				f.advance(time.Hour)
			}
			v := store.EffectVerdict{Tenant: f.tenant, EffectID: e.ID, Verdict: verdict, ProviderID: "seen", ReasonText: []byte("why"), Who: machine}
			got, err := f.ResolveEffect(f.ctx, v)
			require.NoError(t, err)
			require.Equal(t, []any{c.want, c.hold, c.possibly}, []any{got.Effect.State, got.Effect.Hold, got.Effect.PossiblyCommitted}, verdict)
			require.Equal(t, []any{c.run, c.reason}, []any{got.Run.State, got.Run.Reason}, verdict)
			require.Equal(t, c.run.Terminal(), got.RunEnded)
			require.Equal(t, verdict == holdpoint.VerdictSent, got.Effect.ProviderID == "seen")
			require.Equal(t, 1, count(f.kinds(e.RunID), "effect.resolved"))
			_, err = f.ResolveEffect(f.ctx, v)
			requireCode(t, holdpoint.CodeNotAllowedNow, err)
		}
		f, e := doubt(t)
		_, err := f.ResolveEffect(f.ctx, store.EffectVerdict{Tenant: f.tenant, EffectID: e.ID, Verdict: "perhaps", Who: machine})
		requireCode(t, holdpoint.CodeInvalidRequest, err)
		_, err = f.ResolveEffect(f.ctx, store.EffectVerdict{Tenant: "other", EffectID: e.ID, Verdict: holdpoint.VerdictSent, Who: machine})
		requireCode(t, holdpoint.CodeNotFound, err)
	})
	t.Run("not sent inside its time is sent once more", func(t *testing.T) {
		f, e := doubt(t)
		_, err := f.ResolveEffect(f.ctx, store.EffectVerdict{Tenant: f.tenant, EffectID: e.ID, Verdict: holdpoint.VerdictNotSent, Who: machine})
		require.NoError(t, err)
		require.True(t, f.settle(f.accepted(f.begin(f.lease(1)[0]))).RunEnded)
	})
	t.Run("contradicting verdicts at once", func(t *testing.T) {
		f, e := doubt(t)
		won := 0
		for _, r := range parallel(9, func(i int) (store.Settled, error) {
			v := []holdpoint.Verdict{holdpoint.VerdictSent, holdpoint.VerdictNotSent, holdpoint.VerdictAbandon}[i%3]
			return f.ResolveEffect(f.ctx, store.EffectVerdict{Tenant: f.tenant, EffectID: e.ID, Verdict: v, Who: machine})
		}) {
			if r.err == nil {
				won++
			} else {
				requireCode(t, holdpoint.CodeNotAllowedNow, r.err)
			}
		}
		require.Equal(t, 1, won)
		require.Equal(t, 1, count(f.kinds(e.RunID), "effect.resolved"))
	})
	testCancelEffects(t, open)
	testConnectorHolds(t, open)
}

func testCancelEffects(t *testing.T, open func(testing.TB, func() time.Time) store.Store) {
	t.Run("cancel", func(t *testing.T) {
		f := newFixture(t, open)
		f.switchOn()
		d := f.newDraft(f.work("k"), 1, "first", "second", "alone")
		d.Effects[1].After = []string{"first"}
		_, a, err := f.HoldDraft(f.ctx, d)
		require.NoError(t, err)
		e := f.decide(a, jane, holdpoint.DecisionApprove).Effects
		got, err := f.CancelEffect(f.ctx, f.tenant, e[0].ID, []byte("why"), machine)
		require.NoError(t, err)
		require.Equal(t, []any{holdpoint.EffectFailed, "cancelled", false}, []any{got.Effect.State, got.Effect.Reason, got.RunEnded})
		require.Equal(t, "predecessor", f.effect(e[1].ID).Reason)
		leased := f.lease(10)
		require.Len(t, leased, 1)
		got, err = f.CancelEffect(f.ctx, f.tenant, e[2].ID, nil, machine)
		require.NoError(t, err, "leased, not begun")
		require.True(t, got.RunEnded)
		require.Equal(t, holdpoint.ReasonCancelled, got.Run.Reason)
		require.Empty(t, f.tryBegin(leased[0]))
		_, err = f.CancelEffect(f.ctx, f.tenant, e[2].ID, nil, machine)
		requireCode(t, holdpoint.CodeNotAllowedNow, err)
		_, err = f.CancelEffect(f.ctx, f.tenant, "none", nil, machine)
		requireCode(t, holdpoint.CodeNotFound, err)
	})
	t.Run("what has begun is not cancelled", func(t *testing.T) {
		f := newFixture(t, open)
		f.switchOn()
		f.released("k", "mail")
		b := f.begin(f.lease(1)[0])
		before := f.record(b.RunID)
		_, err := f.CancelEffect(f.ctx, f.tenant, b.EffectID, nil, machine)
		requireCode(t, holdpoint.CodeNotAllowedNow, err)
		require.Equal(t, before, f.record(b.RunID))
	})
	t.Run("a cancelled effect in doubt is looked up and never sent again", func(t *testing.T) {
		f := newFixture(t, open)
		f.switchOn()
		f.released("k", "mail")
		e := f.ambiguous(f.lease(1)[0], holdpoint.EffectPending)
		got, err := f.CancelEffect(f.ctx, f.tenant, e.ID, nil, machine)
		require.NoError(t, err)
		require.Equal(t, []any{holdpoint.EffectUnknown, "cancelled", false}, []any{got.Effect.State, got.Effect.Reason, got.RunEnded})
		f.advance(10 * time.Second)
		require.Equal(t, holdpoint.EffectUnknown, f.lookup("repeatable", time.Minute).Effect.State)
		got, err = f.ResolveEffect(f.ctx, store.EffectVerdict{Tenant: f.tenant, EffectID: e.ID, Verdict: holdpoint.VerdictNotSent, Who: machine})
		require.NoError(t, err)
		require.Equal(t, []any{holdpoint.EffectFailed, "cancelled", true}, []any{got.Effect.State, got.Effect.Reason, got.RunEnded})
		require.Equal(t, holdpoint.ReasonCancelled, got.Run.Reason)
	})
	t.Run("cancel against lease and begin", func(t *testing.T) {
		f := newFixture(t, open)
		f.switchOn()
		for i := range 10 {
			e := f.released(newID(), "mail").Effects[0]
			leased := f.lease(1)
			if i%2 == 0 {
				require.NoError(t, f.ReleaseEffects(f.ctx, owner, []store.Settlement{{Tenant: f.tenant, RunID: e.RunID, EffectID: e.ID, Version: leased[0].Version,
					State: holdpoint.EffectPending, Trigger: "retry", Who: lanes}}))
				leased = nil
			}
			results := parallel(2, func(i int) (bool, error) {
				if i == 0 {
					_, err := f.CancelEffect(f.ctx, f.tenant, e.ID, nil, machine)
					return err == nil, nil
				}
				list := leased
				if list == nil {
					var err error
					if list, err = f.LeaseEffects(f.ctx, store.EffectLease{Owner: owner, For: time.Minute, Limit: 1, Enabled: true}); err != nil || len(list) == 0 {
						return false, err
					}
				}
				begun, err := f.BeginAttempts(f.ctx, owner, []store.AttemptBegin{f.attempt(list[0])})
				return len(begun) == 1, err
			})
			require.NoError(t, results[1].err)
			rec := f.record(e.RunID)
			require.False(t, results[0].value && results[1].value, "cancelled and begun")
			require.True(t, results[0].value || results[1].value)
			require.Equal(t, results[1].value, len(rec.Attempts) == 1)
			require.Equal(t, results[0].value, rec.Effects[0].State == holdpoint.EffectFailed)
		}
	})
	t.Run("what is held expired is closed after its time", func(t *testing.T) {
		f := newFixture(t, open)
		f.switchOn()
		e := f.released("k", "mail").Effects[0]
		f.advance(time.Hour)
		require.Empty(t, f.lease(10))
		closed := func(tenant string, keep map[string]time.Duration) []store.Settled {
			t.Helper()
			got, err := f.CloseExpired(f.ctx, tenant, keep, 10)
			require.NoError(t, err)
			return got
		}
		f.advance(time.Hour)
		require.Empty(t, closed(f.tenant, nil))
		require.Empty(t, closed(f.tenant, map[string]time.Duration{"other": 0}), "its workflow is not named")
		require.Empty(t, closed(f.tenant, map[string]time.Duration{"": time.Minute, "refund": 2 * time.Hour}), "its own time is longer")
		require.Empty(t, closed(f.tenant, map[string]time.Duration{"": 2 * time.Hour}))
		require.Empty(t, closed("other", map[string]time.Duration{"": 0}))
		got := closed(f.tenant, map[string]time.Duration{"other": 9 * time.Hour, "": time.Hour})
		require.Len(t, got, 1)
		require.Equal(t, []any{e.ID, holdpoint.EffectFailed, "expired", true}, []any{got[0].Effect.ID, got[0].Effect.State, got[0].Effect.Reason, got[0].RunEnded})
		require.Equal(t, holdpoint.ReasonExpired, got[0].Run.Reason)
	})
}

func testConnectorHolds(t *testing.T, open func(testing.TB, func() time.Time) store.Store) {
	t.Run("holds of effects", func(t *testing.T) {
		f := newFixture(t, open)
		f.switchOn()
		e := f.released("k", "a", "b", "c").Effects
		ids := []string{e[0].ID, e[1].ID, e[2].ID, "none"}
		f.begin(f.lease(1)[0])
		hold := func(h holdpoint.Hold, want int) {
			t.Helper()
			n, err := f.HoldEffects(f.ctx, f.tenant, ids, h, machine)
			require.NoError(t, err)
			require.Equal(t, want, n, h)
		}
		hold(holdpoint.HoldQuota, 2)
		hold(holdpoint.HoldConfiguration, 0)
		hold(holdpoint.HoldAuthority, 2)
		hold(holdpoint.HoldAuthority, 0)
		hold(holdpoint.HoldQuota, 0)
		n, err := f.ReleaseConnector(f.ctx, f.tenant, "mailer", "v1", machine)
		require.NoError(t, err)
		require.Zero(t, n, "a connector's release lifts no hold of authority")
		for _, h := range []holdpoint.Hold{holdpoint.HoldNone, holdpoint.HoldSwitch, holdpoint.HoldExpired, "new"} {
			_, err := f.HoldEffects(f.ctx, f.tenant, ids, h, machine)
			requireCode(t, holdpoint.CodeInternal, err)
		}
		n, err = f.HoldEffects(f.ctx, f.tenant, nil, holdpoint.HoldQuota, machine)
		require.NoError(t, err)
		require.Zero(t, n)
		require.Equal(t, 4, count(f.kinds(e[0].RunID), "effect.held"))
	})
	t.Run("a settlement holds its connector once", func(t *testing.T) {
		f := newFixture(t, open)
		f.switchOn()
		f.released("k", "a")
		s := f.outcomeOf(f.begin(f.lease(1)[0]), holdpoint.Rejected, holdpoint.EffectPending, "retry")
		s.Hold, s.Connector = holdpoint.HoldCredentials, &store.ConnectorHold{Tenant: f.tenant, Connector: "mailer", Hold: holdpoint.HoldCredentials, Detail: "401"}
		settle := func(want ...store.ConnectorHold) {
			t.Helper()
			_, err := f.SettleAttempts(f.ctx, owner, []store.Settlement{s})
			require.NoError(t, err)
			got, err := f.ConnectorHolds(f.ctx, f.tenant)
			require.NoError(t, err)
			require.Equal(t, want, got)
		}
		stands := *s.Connector
		stands.Since = f.now()
		settle(stands)
		require.Equal(t, 1, count(tenantEvents(t, f.Store, f.tenant), "connector.held"))
		n, err := f.ReleaseConnector(f.ctx, f.tenant, "mailer", "v1", machine)
		require.NoError(t, err)
		require.Equal(t, 1, n)
		settle() // its first answer was lost, and in the meantime somebody has let the connector go
		require.Equal(t, 1, count(tenantEvents(t, f.Store, f.tenant), "connector.held"))
	})
	t.Run("holds of a connector", func(t *testing.T) {
		f := newFixture(t, open)
		f.switchOn()
		before := len(tenantEvents(t, f.Store, f.tenant))
		h := store.ConnectorHold{Tenant: f.tenant, Connector: "mailer", Hold: holdpoint.HoldQuota, Detail: "daily cap", Until: f.now().Add(time.Hour)}
		holds := func(want ...store.ConnectorHold) {
			t.Helper()
			got, err := f.ConnectorHolds(f.ctx, f.tenant)
			require.NoError(t, err)
			require.Equal(t, want, got)
		}
		require.NoError(t, f.HoldConnector(f.ctx, h, lanes))
		h.Since = f.now()
		holds(h)
		f.advance(time.Minute)
		h.Until = f.now().Add(2 * time.Hour)
		require.NoError(t, f.HoldConnector(f.ctx, h, lanes))
		holds(h)
		f.advance(time.Minute)
		h.Hold, h.Until, h.Since = holdpoint.HoldCredentials, time.Time{}, f.now()
		require.NoError(t, f.HoldConnector(f.ctx, h, lanes))
		holds(h)
		f.advance(time.Minute)
		weaker := h
		weaker.Hold, weaker.Until = holdpoint.HoldQuota, f.now().Add(time.Minute)
		require.NoError(t, f.HoldConnector(f.ctx, weaker, lanes))
		holds(h)
		typed := store.ConnectorHold{Tenant: f.tenant, Connector: "mailer", Type: "mail", Hold: holdpoint.HoldPermission, Since: f.now()}
		require.NoError(t, f.HoldConnector(f.ctx, typed, lanes))
		holds(h, typed)
		require.Equal(t, []string{"connector.held", "connector.held", "connector.held"}, tenantEvents(t, f.Store, f.tenant)[before:], "a repeated hold is no news")

		e := f.released("k", "a", "b", "c").Effects
		for i, hold := range []holdpoint.Hold{holdpoint.HoldCredentials, holdpoint.HoldAuthority} {
			_, err := f.HoldEffects(f.ctx, f.tenant, []string{e[i].ID}, hold, lanes)
			require.NoError(t, err)
		}
		n, err := f.ReleaseConnector(f.ctx, f.tenant, "mailer", "v2", machine)
		require.NoError(t, err)
		require.Zero(t, n, "effects of another version stay")
		holds()
		n, err = f.ReleaseConnector(f.ctx, f.tenant, "mailer", "v1", machine)
		require.NoError(t, err)
		require.Equal(t, 1, n)
		require.Len(t, f.lease(10), 2)
		require.Equal(t, "connector.released", tail(tenantEvents(t, f.Store, f.tenant), 1)[0])
	})
	t.Run("proofs", func(t *testing.T) {
		f := newFixture(t, open)
		p := store.Proof{Tenant: f.tenant, Connector: "mailer", Version: "v1", KeyLife: 24 * time.Hour, ProvedAt: f.now(), ExpiresAt: f.now().Add(time.Hour)}
		require.NoError(t, f.PutProof(f.ctx, p))
		got, err := f.Proof(f.ctx, f.tenant, "mailer", "v1")
		require.NoError(t, err)
		require.Equal(t, &p, got)
		for _, other := range [][3]string{{"other", "mailer", "v1"}, {f.tenant, "other", "v1"}, {f.tenant, "mailer", "v2"}} {
			got, err = f.Proof(f.ctx, other[0], other[1], other[2])
			require.NoError(t, err)
			require.Nil(t, got)
		}
		f.advance(time.Hour)
		got, err = f.Proof(f.ctx, f.tenant, "mailer", "v1")
		require.NoError(t, err)
		require.Nil(t, got, "it has expired")
		p.ExpiresAt = f.now().Add(time.Hour)
		require.NoError(t, f.PutProof(f.ctx, p))
		got, err = f.Proof(f.ctx, f.tenant, "mailer", "v1")
		require.NoError(t, err)
		require.Equal(t, &p, got)
	})
}
