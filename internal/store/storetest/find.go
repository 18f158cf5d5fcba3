package storetest

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/internal/store"
)

// pages follows a search to its end, page by page, and gives the ids and the number of pages.
func pages(t testing.TB, find func(cursor string) (ids []string, next string, err error)) (all []string, n int) {
	t.Helper()
	for cursor := ""; n < 100; n++ {
		ids, next, err := find(cursor)
		require.NoError(t, err)
		all = append(all, ids...)
		if next == "" {
			return all, n + 1
		}
		cursor = next
	}
	t.Fatal("a search without an end")
	return nil, 0
}

func testFind(t *testing.T, open func(t testing.TB, now func() time.Time) store.Store) {
	ctx := context.Background()

	t.Run("runs are found by every filter, newest first, page by page", func(t *testing.T) {
		s := open(t, nil)
		createTenant(t, s, "acme")
		createTenant(t, s, "other")
		var ids []string
		for i := range 7 {
			ids = append(ids, claimSample(t, s, "acme", []string{"ticket", "order"}[i%2], fmt.Sprint("k", i)).run.ID)
		}
		claimSample(t, s, "other", "ticket", "k1")
		held := claimSample(t, s, "acme", "ticket", "held").hold().run.ID
		for name, c := range map[string]struct {
			filter store.RunFilter
			want   []string // oldest first
		}{
			"all of a tenant": {store.RunFilter{}, append(slices.Clone(ids), held)},
			"key":             {store.RunFilter{Key: "k1"}, []string{ids[1]}},
			"part of a key":   {store.RunFilter{Key: "k"}, nil},
			"key, other case": {store.RunFilter{Key: "K1"}, nil},
			"key hmac":        {store.RunFilter{KeyHMAC: "hmac:k2"}, []string{ids[2]}},
			"record":          {store.RunFilter{Record: "record:k3"}, []string{ids[3]}},
			"workflow":        {store.RunFilter{Workflow: "order"}, []string{ids[1], ids[3], ids[5]}},
			"state":           {store.RunFilter{State: holdpoint.RunAwaitingHuman}, []string{held}},
			"two together":    {store.RunFilter{Workflow: "order", Key: "k2"}, nil},
		} {
			for _, limit := range []int{1, 3, 8, 0} {
				c.filter.Tenant, c.filter.Limit = "acme", limit
				got, _ := pages(t, func(cursor string) ([]string, string, error) {
					c.filter.Cursor = cursor
					runs, next, err := s.FindRuns(ctx, c.filter)
					if limit > 0 {
						require.LessOrEqual(t, len(runs), limit, name)
					}
					var got []string
					for _, r := range runs {
						got = append(got, r.ID)
					}
					return got, next, err
				})
				want := slices.Clone(c.want)
				slices.Reverse(want)
				require.Equal(t, want, got, "%s, %d a page", name, limit)
			}
		}
		none, _, err := s.FindRuns(ctx, store.RunFilter{})
		require.NoError(t, err)
		require.Empty(t, none, "no tenant, no runs")
	})

	t.Run("a page has 50 rows unless said otherwise and never more than 500", func(t *testing.T) {
		s := open(t, nil)
		createTenant(t, s, "acme")
		claims := make([]store.Claim, 501)
		for i := range claims {
			claims[i] = store.Claim{RunID: newID(), Tenant: "acme", Scope: "w", Workflow: "w", Key: fmt.Sprint(i), KeyHMAC: fmt.Sprint(i), Fingerprint: "f", FingerprintRule: "r",
				Ignore: []string{}, Owner: "o", Lease: time.Minute, Cap: time.Hour, AttemptLimit: 1, Budget: time.Hour, StealCap: 1, PolicyHash: "p", RunKey: []byte("k"), Who: worker}
		}
		for part := range slices.Chunk(claims, 100) {
			_, err := s.ClaimRuns(ctx, part)
			require.NoError(t, err)
		}
		for limit, want := range map[int]int{0: 50, -1: 50, 499: 499, 9999: 500} {
			runs, next, err := s.FindRuns(ctx, store.RunFilter{Tenant: "acme", Limit: limit})
			require.NoError(t, err)
			require.Len(t, runs, want)
			require.Equal(t, runs[want-1].ID, next)
		}
	})

	t.Run("approvals are found by id and state", func(t *testing.T) {
		s := open(t, nil)
		createTenant(t, s, "acme")
		var all []string
		for i := range 5 {
			p := claimSample(t, s, "acme", "ticket", fmt.Sprint("k", i)).hold()
			got, err := s.ApprovalByID(ctx, "acme", p.approval.ID)
			require.NoError(t, err)
			require.Equal(t, p.approval, got)
			all = append(all, p.approval.ID)
			if i == 2 {
				p.approve()
			}
		}
		find := func(state holdpoint.ApprovalState) []string {
			got, n := pages(t, func(cursor string) ([]string, string, error) {
				approvals, next, err := s.FindApprovals(ctx, "acme", state, cursor, 2)
				var ids []string
				for _, a := range approvals {
					ids = append(ids, a.ID)
				}
				return ids, next, err
			})
			require.Equal(t, (len(got)+1)/2, n)
			return got
		}
		require.Equal(t, []string{all[4], all[3], all[2], all[1], all[0]}, find(""))
		require.Equal(t, []string{all[4], all[3], all[1], all[0]}, find(holdpoint.ApprovalPending))
		require.Equal(t, []string{all[2]}, find(holdpoint.ApprovalApproved))
		_, err := s.ApprovalByID(ctx, "other", all[0])
		requireCode(t, holdpoint.CodeNotFound, err)
	})

	t.Run("effects are found with their attempts", func(t *testing.T) {
		s := open(t, nil)
		createTenant(t, s, "acme")
		flip(t, s, "acme", true, "global", "tenant")
		p := released(t, s, "acme", "ticket", "k1")
		send(t, s, holdpoint.Unclear, holdpoint.EffectUnknown, "doubt")
		q := released(t, s, "acme", "ticket", "k2")

		e, attempts, err := s.EffectByID(ctx, "acme", p.effect("reply"))
		require.NoError(t, err)
		require.Equal(t, holdpoint.EffectUnknown, e.State)
		require.Equal(t, p.run.ID, e.RunID)
		require.Len(t, attempts, 1)
		require.Equal(t, holdpoint.Unclear, attempts[0].Result)
		_, _, err = s.EffectByID(ctx, "other", e.ID)
		requireCode(t, holdpoint.CodeNotFound, err)

		find := func(f store.EffectFilter) []string {
			f.Tenant, f.Limit = "acme", 1
			got, _ := pages(t, func(cursor string) ([]string, string, error) {
				f.Cursor = cursor
				effects, next, err := s.FindEffects(ctx, f)
				var ids []string
				for _, e := range effects {
					ids = append(ids, e.ID)
				}
				return ids, next, err
			})
			return got
		}
		require.Equal(t, []string{q.effect("note"), q.effect("reply"), p.effect("note"), p.effect("reply")}, find(store.EffectFilter{}))
		require.Equal(t, []string{p.effect("reply")}, find(store.EffectFilter{State: holdpoint.EffectUnknown}))
		require.Equal(t, []string{q.effect("note"), q.effect("reply")}, find(store.EffectFilter{RunID: q.run.ID}))
		require.Empty(t, find(store.EffectFilter{RunID: q.run.ID, State: holdpoint.EffectUnknown}))
		require.Empty(t, find(store.EffectFilter{Held: true}))
	})

	t.Run("first for target looks at what other runs completed", func(t *testing.T) {
		s := open(t, nil)
		createTenant(t, s, "acme")
		flip(t, s, "acme", true, "global", "tenant")
		first := func(tenant, typ, target, except string) bool {
			got, err := s.FirstForTarget(ctx, tenant, typ, target, except)
			require.NoError(t, err)
			return got
		}
		p := released(t, s, "acme", "ticket", "k1")
		require.True(t, first("acme", "email.reply", "t:k1", "another"), "pending is not completed")
		send(t, s, holdpoint.Accepted, holdpoint.EffectCompleted, "accept")
		require.False(t, first("acme", "email.reply", "t:k1", "another"))
		require.True(t, first("acme", "email.reply", "t:k1", p.run.ID), "its own does not count")
		require.True(t, first("acme", "crm.note", "t:k1", "another"))
		require.True(t, first("acme", "email.reply", "t:k2", "another"))
		require.True(t, first("other", "email.reply", "t:k1", "another"))
	})

	t.Run("gauges count what waits", func(t *testing.T) {
		g, err := open(t, nil).Gauges(ctx)
		require.NoError(t, err)
		require.Len(t, g.Effects, 5)
		require.Zero(t, g.OldestPending)
		require.Zero(t, g.Approvals)

		f := newFixture(t, open)
		s := f.Store
		flip(t, s, "acme", true, "global", "tenant")
		released(t, s, "acme", "ticket", "k1")
		f.advance(time.Minute)
		send(t, s, holdpoint.Unclear, holdpoint.EffectUnknown, "doubt")
		f.advance(time.Minute)
		claimSample(t, s, "acme", "ticket", "k2").hold()
		require.NoError(t, s.HoldConnector(ctx, store.ConnectorHold{Tenant: "acme", Connector: "mail", Hold: holdpoint.HoldQuota, Until: f.now().Add(time.Hour)}, worker))
		g, err = s.Gauges(ctx)
		require.NoError(t, err)
		require.EqualValues(t, 1, g.Effects[holdpoint.EffectPending])
		require.EqualValues(t, 1, g.Effects[holdpoint.EffectUnknown])
		require.Equal(t, 2*time.Minute, g.OldestPending)
		require.Equal(t, time.Minute, g.OldestUnknown)
		require.EqualValues(t, 1, g.Approvals)
		require.Len(t, g.Switches, 2)
		require.Len(t, g.Holds, 1)
		require.Equal(t, f.now().Add(time.Hour), g.Holds[0].Until)
		f.advance(time.Hour)
		g, err = s.Gauges(ctx)
		require.NoError(t, err)
		require.Empty(t, g.Holds, "its time is over")
	})
}

// testHolds shows what an effect waits for although no row of it says so.
func testHolds(t *testing.T, open func(t testing.TB, now func() time.Time) store.Store) {
	ctx := context.Background()
	f := newFixture(t, open)
	s := f.Store
	createTenant(t, s, "other")
	p := released(t, s, "acme", "ticket", "k1")
	shows := func(why string, reply, note holdpoint.Hold) {
		t.Helper()
		r, err := s.Record(ctx, "acme", p.run.ID)
		require.NoError(t, err)
		require.Equal(t, []holdpoint.Hold{reply, note}, []holdpoint.Hold{r.Effects[0].Hold, r.Effects[1].Hold}, why)
		effects, _, err := s.FindEffects(ctx, store.EffectFilter{Tenant: "acme"})
		require.NoError(t, err)
		require.Equal(t, []holdpoint.Hold{note, reply}, []holdpoint.Hold{effects[0].Hold, effects[1].Hold}, why)
		held, _, err := s.FindEffects(ctx, store.EffectFilter{Tenant: "acme", Held: true})
		require.NoError(t, err)
		want := map[string]holdpoint.Hold{}
		for slot, hold := range map[string]holdpoint.Hold{"reply": reply, "note": note} {
			e, _, err := s.EffectByID(ctx, "acme", p.effect(slot))
			require.NoError(t, err)
			require.Equal(t, hold, e.Hold, why)
			if hold != holdpoint.HoldNone {
				want[e.ID] = hold
			}
		}
		got := map[string]holdpoint.Hold{}
		for _, e := range held {
			got[e.ID] = e.Hold
		}
		require.Equal(t, want, got, why)
	}
	const off, on = holdpoint.HoldSwitch, holdpoint.HoldNone

	shows("a fresh store is off", off, off)
	flip(t, s, "acme", true, "global")
	shows("the tenant is off", off, off)
	flip(t, s, "other", true, "tenant")
	shows("another tenant's switch says nothing", off, off)
	flip(t, s, "acme", true, "tenant")
	shows("global and tenant are on, narrower ones are missing", on, on)
	flip(t, s, "acme", false, "global")
	shows("the instance is off", off, off)
	flip(t, s, "acme", true, "global")
	flip(t, s, "acme", false, "messages", "workflow:order", "type:ticket", "connector:ticket")
	flip(t, s, "other", false, "tenant", "workflow:ticket")
	shows("switches that do not concern it", on, on)
	for scope, want := range map[string][2]holdpoint.Hold{
		"workflow:ticket": {off, off}, "connector:mail": {off, on}, "type:crm.note": {on, off},
	} {
		flip(t, s, "acme", false, scope)
		shows(scope+" off", want[0], want[1])
		flip(t, s, "acme", true, scope)
		shows(scope+" on", on, on)
	}

	require.NoError(t, s.HoldConnector(ctx, store.ConnectorHold{Tenant: "acme", Connector: "crm", Type: "email.reply", Hold: holdpoint.HoldPermission}, worker))
	shows("another type of that connector", on, on)
	require.NoError(t, s.HoldConnector(ctx, store.ConnectorHold{Tenant: "acme", Connector: "crm", Type: "crm.note", Hold: holdpoint.HoldPermission}, worker))
	shows("its type of that connector", on, holdpoint.HoldPermission)
	require.NoError(t, s.HoldConnector(ctx, store.ConnectorHold{Tenant: "acme", Connector: "mail", Hold: holdpoint.HoldQuota, Until: f.now().Add(time.Minute)}, worker))
	require.NoError(t, s.HoldConnector(ctx, store.ConnectorHold{Tenant: "other", Connector: "mail", Hold: holdpoint.HoldCredentials}, worker))
	shows("a whole connector for a time", holdpoint.HoldQuota, holdpoint.HoldPermission)
	f.advance(time.Minute)
	shows("that time is over", on, holdpoint.HoldPermission)
	flip(t, s, "acme", false, "tenant")
	shows("the switch comes first", off, off)

	_, err := s.HoldEffects(ctx, "acme", []string{p.effect("note")}, holdpoint.HoldAuthority, admin)
	require.NoError(t, err)
	shows("its own hold comes before all", off, holdpoint.HoldAuthority)
	flip(t, s, "acme", true, "tenant")
	send(t, s, holdpoint.Accepted, holdpoint.EffectCompleted, "accept")
	flip(t, s, "acme", false, "tenant")
	shows("what is sent is not held", on, holdpoint.HoldAuthority)
}
