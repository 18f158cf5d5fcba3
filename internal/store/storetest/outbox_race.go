package storetest

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/internal/store"
)

// OutboxRaces lets decisions, leases, begins and flips of tenant acme meet, spread over several stores of one database.
func OutboxRaces(t *testing.T, stores ...store.Store) {
	f := &fixture{Store: stores[0], t: t, ctx: t.Context(), tenant: "acme"}
	at := func(i int) store.Store { return stores[i%len(stores)] }
	t.Run("contradicting decisions", func(t *testing.T) {
		_, a := f.held(f.work(newID()), "mail", "note")
		won := 0
		for _, r := range parallel(40, func(i int) (store.DecisionResult, error) {
			p := holdpoint.Person{ID: fmt.Sprint("p", i), Tenant: f.tenant, Email: fmt.Sprint("p", i, "@acme.example")}
			return at(i).Decide(f.ctx, f.answer(a, p, []holdpoint.Decision{holdpoint.DecisionApprove, holdpoint.DecisionReject}[i/2%2]))
		}) {
			if r.err == nil {
				won++
				require.Len(t, r.value.Effects, map[holdpoint.Decision]int{holdpoint.DecisionApprove: 2}[r.value.Decision.Decision])
			} else {
				requireCode(t, holdpoint.CodeAlreadyDecided, r.err)
			}
		}
		require.Equal(t, 1, won)
		rec := f.record(a.RunID)
		require.Len(t, rec.Decisions, 1)
		_, err := f.CancelRun(f.ctx, f.tenant, a.RunID, nil, admin)
		require.Equal(t, rec.Run.State == holdpoint.RunApproved, err == nil)
	})
	t.Run("leases, begins and settlements", func(t *testing.T) {
		f.switchOn()
		const runs = 20
		for range runs {
			f.released(newID(), "a", "b", "c")
		}
		seen, ended := map[string]int{}, 0
		for rounds := 0; len(seen) < 3*runs && rounds < 100; rounds++ {
			for _, r := range parallel(8, func(i int) ([]store.Settled, error) {
				me := fmt.Sprint("d", i)
				leased, err := at(i).LeaseEffects(f.ctx, store.EffectLease{Owner: me, For: time.Minute, Limit: 5, Enabled: true})
				if err != nil || len(leased) == 0 {
					return nil, err
				}
				list := make([]store.AttemptBegin, len(leased))
				for j, e := range leased {
					list[j] = f.attempt(e)
				}
				begun, err := at(i).BeginAttempts(f.ctx, me, list)
				if err != nil {
					return nil, err
				}
				outcomes := make([]store.Settlement, len(begun))
				for j, b := range begun {
					outcomes[j] = f.accepted(b)
				}
				return at(i+1).SettleAttempts(f.ctx, me, outcomes)
			}) {
				require.NoError(t, r.err)
				for _, s := range r.value {
					seen[s.Effect.ID]++
					if s.RunEnded {
						ended++
					}
				}
			}
		}
		require.Len(t, seen, 3*runs)
		require.Equal(t, runs, ended)
		for id, n := range seen {
			require.Equal(t, 1, n, id)
		}
	})
	t.Run("a flip on one, begins on the other", func(t *testing.T) {
		for range 10 {
			f.switchOn()
			run := f.released(newID(), "a", "b", "c", "d").Run.ID
			leased := f.lease(4)
			results := parallel(5, func(i int) ([]string, error) {
				if i == 2 {
					_, inFlight, err := at(0).SetSwitch(f.ctx, store.SwitchChange{Tenant: f.tenant, Scope: "global", Who: admin})
					return ids(inFlight), err
				}
				begun, err := at(1).BeginAttempts(f.ctx, owner, []store.AttemptBegin{f.attempt(leased[i-i/3])})
				if len(begun) == 1 {
					return []string{begun[0].ID}, err
				}
				return nil, err
			})
			var begun []string
			for i, r := range results {
				require.NoError(t, r.err)
				if i != 2 {
					begun = append(begun, r.value...)
				}
			}
			require.ElementsMatch(t, begun, results[2].value, "the flip's list is all that ever began")
			for _, a := range f.record(run).Attempts {
				f.settle(f.accepted(store.BegunAttempt{Attempt: a, Version: f.effect(a.EffectID).Version}))
			}
			if len(begun) < 4 {
				_, err := f.CancelRun(f.ctx, f.tenant, run, nil, admin)
				require.NoError(t, err)
			}
		}
	})
}
