package storetest

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/internal/store"
)

// testSwitches is the kill switch: what is stored, what it says, and the race of a flip with everything that begins.
func testSwitches(t *testing.T, open func(testing.TB, func() time.Time) store.Store) {
	t.Run("flips are stored, listed and evidence", func(t *testing.T) {
		f := newFixture(t, open)
		createTenant(t, f.Store, "other")
		before := len(tenantEvents(t, f.Store, f.tenant))
		f.advance(time.Second)
		sw, inFlight, err := f.SetSwitch(f.ctx, store.SwitchChange{Tenant: f.tenant, Scope: "workflow:refund", On: true, ReasonText: []byte("why"), Who: admin})
		require.NoError(t, err)
		require.Equal(t, holdpoint.Switch{Tenant: f.tenant, Scope: "workflow:refund", On: true, ChangedBy: admin.ID, ChangedAt: f.now()}, sw)
		require.Empty(t, inFlight)
		global, _, err := f.SetSwitch(f.ctx, store.SwitchChange{Tenant: f.tenant, Scope: "global", On: true, Who: admin})
		require.NoError(t, err)
		require.Empty(t, global.Tenant)
		flip(t, f.Store, "other", true, "messages")
		all, err := f.Switches(f.ctx, f.tenant)
		require.NoError(t, err)
		require.Equal(t, []string{"global", "tenant", "workflow:refund"}, scopes(all))
		require.Equal(t, []bool{true, false, true}, []bool{all[0].On, all[1].On, all[2].On})
		flip(t, f.Store, f.tenant, false, "workflow:refund")
		all, err = f.Switches(f.ctx, f.tenant)
		require.NoError(t, err)
		require.False(t, all[2].On)
		require.Equal(t, []string{"switch.changed", "switch.changed", "switch.changed"}, tenantEvents(t, f.Store, f.tenant)[before:])
	})
	t.Run("unknown scopes and tenants", func(t *testing.T) {
		f := newFixture(t, open)
		for _, scope := range []string{"", "everything", "Global", "workflow", "workflow:", "global:x", "lane:x"} {
			_, _, err := f.SetSwitch(f.ctx, store.SwitchChange{Tenant: f.tenant, Scope: scope, On: true, Who: admin})
			requireCode(t, holdpoint.CodeInvalidRequest, err)
		}
		for _, scope := range []string{"global", "tenant"} {
			_, _, err := f.SetSwitch(f.ctx, store.SwitchChange{Tenant: "none", Scope: scope, On: true, Who: admin})
			requireCode(t, holdpoint.CodeNotFound, err)
		}
		all, err := f.Switches(f.ctx, f.tenant)
		require.NoError(t, err)
		for _, sw := range all {
			require.False(t, sw.On, sw.Scope)
		}
	})
	t.Run("a flip returns what is in flight where it reaches", func(t *testing.T) {
		f := newFixture(t, open)
		f.switchOn()
		createTenant(t, f.Store, "other")
		flip(t, f.Store, "other", true, "tenant")
		f.released("k1", "mail")
		f.released("k2", "mail")
		list := f.lease(2)
		begun := f.begin(list[0])
		f.settle(f.accepted(f.begin(list[1])))
		for scope, want := range map[string]int{"global": 1, "tenant": 1, "type:mail": 1} {
			_, inFlight, err := f.SetSwitch(f.ctx, store.SwitchChange{Tenant: f.tenant, Scope: scope, Who: admin})
			require.NoError(t, err)
			require.Len(t, inFlight, want, scope)
			require.Equal(t, begun.Attempt, inFlight[0])
		}
		_, inFlight, err := f.SetSwitch(f.ctx, store.SwitchChange{Tenant: "other", Scope: "tenant", Who: admin})
		require.NoError(t, err)
		require.Empty(t, inFlight)
		_, inFlight, err = f.SetSwitch(f.ctx, store.SwitchChange{Tenant: "other", Scope: "global", Who: admin})
		require.NoError(t, err)
		require.Len(t, inFlight, 1, "global reaches all tenants")
		require.True(t, f.settle(f.accepted(begun)).RunEnded, "what has begun is finished and recorded")
	})
	t.Run("after a flip has returned nothing begins", func(t *testing.T) {
		f := newFixture(t, open)
		const rounds, effects = 12, 8
		all := []string{"global", "tenant", "workflow:refund", "connector:mailer", "type:mail"}
		for round := range rounds {
			scope := all[round%len(all)]
			flip(t, f.Store, f.tenant, true, all...)
			slots := make([]string, effects)
			for i := range slots {
				slots[i] = fmt.Sprint("s", i)
			}
			run := f.released(fmt.Sprint("k", round), slots...).Run.ID
			leased := f.lease(effects)
			require.Len(t, leased, effects)
			results := parallel(effects+1, func(i int) ([]string, error) {
				if i == effects/2 {
					_, inFlight, err := f.SetSwitch(f.ctx, store.SwitchChange{Tenant: f.tenant, Scope: scope, Who: admin})
					return ids(inFlight), err
				}
				if i > effects/2 {
					i--
				}
				begun, err := f.BeginAttempts(f.ctx, owner, []store.AttemptBegin{f.attempt(leased[i])})
				var got []string
				for _, b := range begun {
					got = append(got, b.ID)
				}
				return got, err
			})
			var begun []string
			for i, r := range results {
				require.NoError(t, r.err, "flips and begins wait for each other, briefly")
				if i != effects/2 {
					begun = append(begun, r.value...)
				}
			}
			rec := f.record(run)
			require.ElementsMatch(t, begun, ids(rec.Attempts))
			require.ElementsMatch(t, results[effects/2].value, begun, "the flip's list is all that ever began")
			for _, e := range rec.Effects {
				if !slices.ContainsFunc(rec.Attempts, func(a holdpoint.Attempt) bool { return a.EffectID == e.ID }) {
					require.Equal(t, holdpoint.EffectPending, e.State)
				}
			}
			for _, a := range rec.Attempts { // settle, so that the next round starts with an empty list
				v := f.effect(a.EffectID).Version
				f.settle(f.accepted(store.BegunAttempt{Attempt: a, Version: v}))
			}
			_, err := f.CancelRun(f.ctx, f.tenant, run, nil, admin)
			if len(begun) < effects {
				require.NoError(t, err)
			}
		}
	})
	t.Run("a flip gets through a stream of begins", func(t *testing.T) {
		f := newFixture(t, open)
		f.switchOn()
		const workers, each = 6, 20
		for w := range workers {
			slots := make([]string, each)
			for i := range slots {
				slots[i] = fmt.Sprint("s", i)
			}
			f.released(fmt.Sprint("k", w), slots...)
		}
		leased := f.lease(workers * each)
		require.Len(t, leased, workers*each)
		results := parallel(workers+1, func(w int) (int, error) {
			if w == workers {
				_, inFlight, err := f.SetSwitch(f.ctx, store.SwitchChange{Tenant: f.tenant, Scope: "tenant", Who: admin})
				return len(inFlight), err
			}
			n := 0
			for _, e := range leased[w*each : (w+1)*each] {
				begun, err := f.BeginAttempts(f.ctx, owner, []store.AttemptBegin{f.attempt(e)})
				if err != nil {
					return n, err
				}
				n += len(begun)
			}
			return n, nil
		})
		total := 0
		for _, r := range results {
			require.NoError(t, r.err)
		}
		for _, r := range results[:workers] {
			total += r.value
		}
		require.Equal(t, results[workers].value, total)
	})
}

func scopes(all []holdpoint.Switch) (list []string) {
	for _, sw := range all {
		list = append(list, sw.Scope)
	}
	return list
}

func ids(all []holdpoint.Attempt) (list []string) {
	for _, a := range all {
		list = append(list, a.ID)
	}
	return list
}
