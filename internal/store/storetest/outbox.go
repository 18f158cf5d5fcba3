package storetest

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/internal/store"
)

// lanes is the actor of what a test's dispatcher does, and its owner name.
var lanes = holdpoint.Who{Kind: "system", ID: "dispatcher"}

const owner = "dispatcher-1"

// switchOn lets the fixture's tenant send.
func (f *fixture) switchOn() {
	f.t.Helper()
	flip(f.t, f.Store, f.tenant, true, "global", "tenant")
}

// lease leases up to n due effects for a minute.
func (f *fixture) lease(n int) []store.LeasedEffect {
	f.t.Helper()
	leased, err := f.LeaseEffects(f.ctx, store.EffectLease{Owner: owner, For: time.Minute, Limit: n, Enabled: true})
	require.NoError(f.t, err)
	return leased
}

// attempt is the begin of a leased effect, sent within ten seconds, without a proof.
func (f *fixture) attempt(e store.LeasedEffect) store.AttemptBegin {
	return store.AttemptBegin{ID: uuid.NewString(), Tenant: e.Tenant, EffectID: e.ID, RunID: e.RunID, Version: e.Version, WireHash: "wire", SendBefore: 10 * time.Second}
}

func (f *fixture) tryBegin(e store.LeasedEffect) []store.BegunAttempt {
	f.t.Helper()
	begun, err := f.BeginAttempts(f.ctx, owner, []store.AttemptBegin{f.attempt(e)})
	require.NoError(f.t, err)
	return begun
}

// begin begins an attempt that must be allowed.
func (f *fixture) begin(e store.LeasedEffect) store.BegunAttempt {
	f.t.Helper()
	begun := f.tryBegin(e)
	require.Len(f.t, begun, 1)
	return begun[0]
}

// outcomeOf is the settlement of a begun attempt.
func (f *fixture) outcomeOf(b store.BegunAttempt, result holdpoint.Result, to holdpoint.EffectState, trigger string) store.Settlement {
	return store.Settlement{Tenant: f.tenant, RunID: b.RunID, EffectID: b.EffectID, AttemptID: b.ID, Version: b.Version, State: to, Trigger: trigger, Spend: true, Who: lanes,
		Outcome: holdpoint.Outcome{Result: result, Phase: holdpoint.PhaseComplete}}
}

func (f *fixture) accepted(b store.BegunAttempt) store.Settlement {
	s := f.outcomeOf(b, holdpoint.Accepted, holdpoint.EffectCompleted, "accept")
	s.Outcome.Status, s.Outcome.ProviderID = 201, "provider-"+b.EffectID
	return s
}

// settle settles one attempt.
func (f *fixture) settle(s store.Settlement) store.Settled {
	f.t.Helper()
	settled, err := f.SettleAttempts(f.ctx, owner, []store.Settlement{s})
	require.NoError(f.t, err)
	require.Len(f.t, settled, 1)
	return settled[0]
}

// ambiguous sends a leased effect with a proof, loses the answer and leaves the effect in a state.
func (f *fixture) ambiguous(e store.LeasedEffect, to holdpoint.EffectState) holdpoint.Effect {
	f.t.Helper()
	a := f.attempt(e)
	a.ProofUntil = f.now().Add(time.Hour)
	begun, err := f.BeginAttempts(f.ctx, owner, []store.AttemptBegin{a})
	require.NoError(f.t, err)
	require.Len(f.t, begun, 1)
	trigger := map[holdpoint.EffectState]string{holdpoint.EffectPending: "retry", holdpoint.EffectUnknown: "doubt"}[to]
	s := f.outcomeOf(begun[0], holdpoint.Unclear, to, trigger)
	s.Outcome.Class, s.Outcome.Phase = holdpoint.ClassAmbiguous, holdpoint.PhaseWritten
	settled := f.settle(s)
	require.Equal(f.t, to, settled.Effect.State)
	return settled.Effect
}

// lookup leases the one due look-up and settles it.
func (f *fixture) lookup(state string, next time.Duration) store.Settled {
	f.t.Helper()
	leased, err := f.LeaseLookups(f.ctx, owner, time.Minute, 10)
	require.NoError(f.t, err)
	require.Len(f.t, leased, 1)
	e := leased[0]
	settled, err := f.SettleLookup(f.ctx, owner, store.LookupResult{Tenant: e.Tenant, RunID: e.RunID, EffectID: e.ID, Version: e.Version, State: state,
		ProviderID: "found-" + e.ID, Next: next, Who: lanes})
	require.NoError(f.t, err)
	require.False(f.t, settled.Lost)
	return settled
}

// effect reads an effect as it stands.
func (f *fixture) effect(id string) holdpoint.Effect {
	f.t.Helper()
	e, _, err := f.EffectByID(f.ctx, f.tenant, id)
	require.NoError(f.t, err)
	return e
}

// testOutbox is the way of effects into a provider's hands and back.
func testOutbox(t *testing.T, open func(testing.TB, func() time.Time) store.Store) {
	t.Run("lease and content", func(t *testing.T) {
		f := newFixture(t, open)
		f.switchOn()
		r := f.released("k", "mail")
		e := f.lease(10)
		require.Len(t, e, 1)
		require.Equal(t, holdpoint.EffectSending, e[0].State)
		require.Equal(t, r.Effects[0].EffectSpec, e[0].EffectSpec)
		require.EqualValues(t, 2, e[0].Version)
		require.Equal(t, []any{[]byte("target"), []byte("payload"), []byte("key"), "k"}, []any{e[0].Target, e[0].Payload, e[0].RunKey, e[0].RunKeyT})
		require.Equal(t, f.now(), e[0].Now)
		require.Equal(t, f.now().Add(time.Minute), *e[0].LeaseExpiresAt)
		require.Empty(t, f.lease(10), "leased once")
		require.Equal(t, "effect.leased", tail(f.kinds(r.Run.ID), 1)[0])
	})
	t.Run("what is not leased", func(t *testing.T) { testNotLeased(t, open) })
	t.Run("order", func(t *testing.T) { testOrder(t, open) })
	t.Run("eight dispatchers lease each effect once", func(t *testing.T) {
		f := newFixture(t, open)
		f.switchOn()
		const runs, slots = 20, 10
		names := make([]string, slots)
		for i := range names {
			names[i] = fmt.Sprint("slot", i)
		}
		for i := range runs {
			f.released(fmt.Sprint("k", i), names...)
		}
		seen := map[string]int{}
		// A dispatcher that finds nothing may have met rows that another one holds at that moment, so it is the number of
		// effects that says when all are leased.
		for rounds := 0; len(seen) < runs*slots && rounds < 100; rounds++ {
			for _, r := range parallel(8, func(i int) ([]store.LeasedEffect, error) {
				return f.LeaseEffects(f.ctx, store.EffectLease{Owner: fmt.Sprint("d", i), For: time.Minute, Limit: 7, Enabled: true})
			}) {
				require.NoError(t, r.err)
				require.LessOrEqual(t, len(r.value), 7)
				for _, e := range r.value {
					seen[e.ID]++
				}
			}
		}
		require.Len(t, seen, runs*slots)
		for id, n := range seen {
			require.Equal(t, 1, n, id)
		}
	})
	t.Run("begin", func(t *testing.T) { testBegin(t, open) })
	t.Run("settle", func(t *testing.T) { testSettle(t, open) })
	t.Run("recover", func(t *testing.T) { testRecover(t, open) })
	t.Run("release", func(t *testing.T) { testRelease(t, open) })
}

// testNotLeased is I2: each condition of the lease alone stops an effect, and lets it go when it is lifted.
func testNotLeased(t *testing.T, open func(testing.TB, func() time.Time) store.Store) {
	f := newFixture(t, open)
	id := f.released("k", "mail").Effects[0].ID
	all := store.EffectLease{Owner: owner, For: time.Minute, Limit: 10, Enabled: true}
	leases := func(why string, want int) {
		t.Helper()
		leased, err := f.LeaseEffects(f.ctx, all)
		require.NoError(t, err)
		require.Len(t, leased, want, why)
		for _, e := range leased { // give it back
			require.NoError(t, f.ReleaseEffects(f.ctx, owner, []store.Settlement{{Tenant: e.Tenant, RunID: e.RunID, EffectID: e.ID, Version: e.Version,
				State: holdpoint.EffectPending, Trigger: "retry", Who: lanes}}))
		}
	}
	leases("a fresh store is off", 0)
	flip(t, f.Store, f.tenant, true, "tenant")
	leases("global is off", 0)
	flip(t, f.Store, f.tenant, true, "global")
	leases("all is on", 1)
	flip(t, f.Store, f.tenant, false, "tenant")
	leases("the tenant is off", 0)
	flip(t, f.Store, f.tenant, true, "tenant")
	for _, scope := range []string{"workflow:refund", "connector:mailer", "type:mail"} {
		flip(t, f.Store, f.tenant, false, scope)
		leases(scope+" is off", 0)
		flip(t, f.Store, f.tenant, true, scope)
		leases(scope+" is on", 1)
	}
	flip(t, f.Store, f.tenant, false, "workflow:other", "connector:other", "type:other", "messages")
	leases("other scopes are off", 1)

	all.Enabled = false
	leases("not enabled", 0)
	all.Enabled = true
	all.Skip = []string{"https://other", "smtp://mail"}
	leases("its provider is passed over", 0)
	all.Skip = all.Skip[:1]
	leases("another provider is passed over", 1)

	hold := func(typ string, until time.Time) {
		require.NoError(t, f.HoldConnector(f.ctx, store.ConnectorHold{Tenant: f.tenant, Connector: "mailer", Type: typ, Hold: holdpoint.HoldQuota, Until: until}, lanes))
	}
	hold("other", time.Time{})
	leases("another type of the connector is held", 1)
	hold("mail", f.now().Add(time.Minute))
	leases("its type is held", 0)
	f.advance(time.Minute)
	leases("the hold has passed", 1)
	hold("", time.Time{})
	leases("the connector is held", 0)
	_, err := f.ReleaseConnector(f.ctx, f.tenant, "mailer", "v1", machine)
	require.NoError(t, err)
	leases("the connector is free", 1)

	n, err := f.HoldEffects(f.ctx, f.tenant, []string{id}, holdpoint.HoldConfiguration, machine)
	require.NoError(t, err)
	require.Equal(t, 1, n)
	leases("it is held itself", 0)
	_, err = f.ReleaseConnector(f.ctx, f.tenant, "mailer", "v1", machine)
	require.NoError(t, err)
	leases("it is free again", 1)

	e := f.lease(1)[0]
	s := f.outcomeOf(f.begin(e), holdpoint.Rejected, holdpoint.EffectPending, "retry")
	s.Next = time.Minute
	f.settle(s)
	leases("it is not due", 0)
	f.advance(time.Minute)
	leases("it is due", 1)

	f.advance(time.Hour)
	leases("its time is over", 0)
	require.Equal(t, holdpoint.HoldExpired, f.effect(id).Hold)
	require.Equal(t, "effect.held", tail(f.kinds(e.RunID), 1)[0])
	leases("and stays so", 0)
	require.Equal(t, "effect.held", tail(f.kinds(e.RunID), 1)[0])
}

func testOrder(t *testing.T, open func(testing.TB, func() time.Time) store.Store) {
	// chain releases a -> b -> c, and d on its own.
	chain := func(t *testing.T) (*fixture, map[string]string) {
		f := newFixture(t, open)
		f.switchOn()
		d := f.newDraft(f.work("k"), 1, "c", "b", "a", "d")
		d.Effects[0].After, d.Effects[1].After = []string{"b"}, []string{"a"}
		_, a, err := f.HoldDraft(f.ctx, d)
		require.NoError(t, err)
		ids := map[string]string{}
		for _, e := range f.decide(a, jane, holdpoint.DecisionApprove).Effects {
			ids[e.Slot] = e.ID
		}
		return f, ids
	}
	slots := func(leased []store.LeasedEffect) map[string]store.LeasedEffect {
		all := map[string]store.LeasedEffect{}
		for _, e := range leased {
			all[e.Slot] = e
		}
		return all
	}
	t.Run("each waits for its predecessor", func(t *testing.T) {
		f, _ := chain(t)
		first := slots(f.lease(10))
		require.Len(t, first, 2)
		require.Contains(t, first, "a")
		require.Contains(t, first, "d")
		require.False(t, f.settle(f.accepted(f.begin(first["d"]))).RunEnded)
		require.Empty(t, f.lease(10))
		for _, slot := range []string{"a", "b", "c"} {
			if slot != "a" {
				first = slots(f.lease(10))
				require.Len(t, first, 1)
			}
			require.Equal(t, slot == "c", f.settle(f.accepted(f.begin(first[slot]))).RunEnded)
		}
	})
	t.Run("a failed predecessor ends what waits for it, and no other", func(t *testing.T) {
		f, ids := chain(t)
		first := slots(f.lease(10))
		s := f.outcomeOf(f.begin(first["a"]), holdpoint.Rejected, holdpoint.EffectFailed, "refuse")
		s.Outcome.Class = holdpoint.ClassDeclined
		settled := f.settle(s)
		require.Equal(t, holdpoint.EffectFailed, settled.Effect.State)
		require.Equal(t, "declined", settled.Effect.Reason)
		require.False(t, settled.RunEnded)
		for _, slot := range []string{"b", "c"} {
			require.Equal(t, holdpoint.EffectFailed, f.effect(ids[slot]).State)
			require.Equal(t, "predecessor", f.effect(ids[slot]).Reason)
		}
		settled = f.settle(f.accepted(f.begin(first["d"])))
		require.True(t, settled.RunEnded)
		require.Equal(t, holdpoint.RunFailedTerminal, settled.Run.State)
		require.Equal(t, holdpoint.ReasonEffectFailed, settled.Run.Reason)
		require.Equal(t, holdpoint.ClassDeclined, settled.Run.FailureClass)
		require.Equal(t, 3, count(f.kinds(settled.Run.ID), "effect.failed"))
	})
	t.Run("an unknown predecessor is waited for", func(t *testing.T) {
		f, ids := chain(t)
		f.ambiguous(slots(f.lease(10))["a"], holdpoint.EffectUnknown)
		require.Empty(t, f.lease(10))
		require.Equal(t, holdpoint.EffectPending, f.effect(ids["b"]).State)
		_, err := f.ResolveEffect(f.ctx, store.EffectVerdict{Tenant: f.tenant, EffectID: ids["a"], Verdict: holdpoint.VerdictAbandon, Who: machine})
		require.NoError(t, err)
		require.Equal(t, "predecessor", f.effect(ids["c"]).Reason)
	})
}
