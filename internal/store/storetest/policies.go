package storetest

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/internal/store"
)

// simultaneously runs n calls at the same time and gives their errors in order.
func simultaneously(n int, call func(i int) error) []error {
	errs := make([]error, n)
	start := make(chan struct{})
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			<-start
			errs[i] = call(i)
		})
	}
	close(start)
	wg.Wait()
	return errs
}

// requireOneWinner fails unless exactly one call succeeded and all others have that code. It gives the winner.
func requireOneWinner(t *testing.T, errs []error, code holdpoint.Code) int {
	t.Helper()
	winner := -1
	for i, err := range errs {
		if err != nil {
			requireCode(t, code, err)
			continue
		}
		require.Equal(t, -1, winner, "two calls won")
		winner = i
	}
	require.NotEqual(t, -1, winner, "no call won")
	return winner
}

func testPolicies(t *testing.T, open func(t testing.TB, now func() time.Time) store.Store) {
	ctx := context.Background()

	t.Run("what is leased comes with the policy that is active", func(t *testing.T) {
		f := newFixture(t, open)
		f.switchOn()
		for _, hash := range []string{"policy-1", "policy-2"} {
			before, err := f.TenantByName(f.ctx, f.tenant)
			require.NoError(t, err)
			require.NoError(t, f.PutPolicy(f.ctx, store.PolicyRow{Tenant: f.tenant, Hash: hash, Document: hash}, local))
			require.NoError(t, f.ActivatePolicy(f.ctx, f.tenant, hash, before.ActivePolicy, local))
			f.released(hash, "mail")
			e := f.lease(1)[0]
			require.Equal(t, hash, e.Policy)
			s := f.outcomeOf(f.begin(e), holdpoint.Unclear, holdpoint.EffectUnknown, "doubt")
			s.Next = 10 * time.Second
			_, err = f.SettleAttempts(f.ctx, owner, []store.Settlement{s})
			require.NoError(t, err)
			f.advance(10 * time.Second)
			unknown, err := f.LeaseLookups(f.ctx, owner, time.Minute, 1)
			require.NoError(t, err)
			require.Len(t, unknown, 1)
			require.Equal(t, hash, unknown[0].Policy)
			messages, err := f.LeaseMessages(f.ctx, owner, time.Minute, 1)
			require.NoError(t, err)
			require.Len(t, messages, 1)
			require.Equal(t, hash, messages[0].Policy)
		}
	})

	t.Run("a tenant starts with its keys, no policy and switches off", func(t *testing.T) {
		s := open(t, nil)
		errs := simultaneously(6, func(i int) error {
			return s.CreateTenant(ctx, store.Tenant{Name: "acme", EffectKey: []byte{1, byte(i)}, IndexKey: []byte{2, byte(i)}, ActivePolicy: "x"}, local)
		})
		winner := requireOneWinner(t, errs, holdpoint.CodeExists)
		got, err := s.TenantByName(ctx, "acme")
		require.NoError(t, err)
		require.False(t, got.CreatedAt.IsZero())
		require.Equal(t, store.Tenant{Name: "acme", EffectKey: []byte{1, byte(winner)}, IndexKey: []byte{2, byte(winner)}, CreatedAt: got.CreatedAt}, got)
		_, err = s.TenantByName(ctx, "other")
		requireCode(t, holdpoint.CodeNotFound, err)

		createTenant(t, s, "aardvark")
		tenants, err := s.ListTenants(ctx)
		require.NoError(t, err)
		require.Len(t, tenants, 2)
		require.Equal(t, "aardvark", tenants[0].Name)

		g, err := s.Gauges(ctx)
		require.NoError(t, err)
		var scopes []string
		for _, w := range g.Switches {
			require.False(t, w.On)
			scopes = append(scopes, w.Tenant+"/"+w.Scope+" by "+w.ChangedBy)
		}
		require.ElementsMatch(t, []string{"/global by ops", "aardvark/tenant by key-1", "acme/tenant by ops"}, scopes)
	})

	t.Run("a policy is stored once, with the author of the first call", func(t *testing.T) {
		s := open(t, nil)
		createTenant(t, s, "acme")
		p := store.PolicyRow{Tenant: "acme", Hash: "h1", Document: "version: 1\n", Files: map[string]string{"a.json": "{}\n"}}
		require.NoError(t, s.PutPolicy(ctx, p, local))
		require.NoError(t, s.PutPolicy(ctx, p, admin))
		got, err := s.PolicyByHash(ctx, "acme", "h1")
		require.NoError(t, err)
		p.CreatedAt, p.CreatedBy = got.CreatedAt, "ops"
		require.Equal(t, p, got)
		require.NoError(t, s.PutPolicy(ctx, store.PolicyRow{Tenant: "acme", Hash: "h2", Document: "version: 1"}, admin))
		all, err := s.ListPolicies(ctx, "acme")
		require.NoError(t, err)
		require.Len(t, all, 2)
		_, err = s.PolicyByHash(ctx, "other", "h1")
		requireCode(t, holdpoint.CodeNotFound, err)
		requireCode(t, holdpoint.CodeNotFound, s.PutPolicy(ctx, store.PolicyRow{Tenant: "nowhere", Hash: "h1"}, admin))
		require.Equal(t, []string{"tenant.created", "policy.stored", "policy.stored"}, tenantEvents(t, s, "acme"))
	})

	t.Run("activation compares with what the caller saw", func(t *testing.T) {
		s := open(t, nil)
		createTenant(t, s, "acme")
		for _, h := range []string{"h1", "h2"} {
			require.NoError(t, s.PutPolicy(ctx, store.PolicyRow{Tenant: "acme", Hash: h}, admin))
		}
		active := func() string {
			got, err := s.TenantByName(ctx, "acme")
			require.NoError(t, err)
			return got.ActivePolicy
		}
		requireCode(t, holdpoint.CodeNotFound, s.ActivatePolicy(ctx, "acme", "h3", "", admin))
		requireCode(t, holdpoint.CodeNotFound, s.ActivatePolicy(ctx, "nowhere", "h1", "", admin))
		requireCode(t, holdpoint.CodePolicyMoved, s.ActivatePolicy(ctx, "acme", "h1", "h2", admin))
		require.Empty(t, active())

		require.NoError(t, s.ActivatePolicy(ctx, "acme", "h1", "", admin))
		require.Equal(t, "h1", active())
		e := requireCode(t, holdpoint.CodePolicyMoved, s.ActivatePolicy(ctx, "acme", "h1", "", admin)) // a repeated call after a lost answer
		require.Equal(t, "h1", e.Detail["active"])
		require.NoError(t, s.ActivatePolicy(ctx, "acme", "h2", "h1", admin))
		require.Equal(t, "h2", active())

		events, err := s.Events(ctx, "acme", "")
		require.NoError(t, err)
		require.Equal(t, []string{"tenant.created", "policy.stored", "policy.stored", "policy.activated", "policy.activated"}, tenantEvents(t, s, "acme"))
		require.Equal(t, map[string]any{"from": "h1", "to": "h2"}, events[len(events)-1].Data)
	})

	t.Run("of simultaneous activations one wins and the others learn which", func(t *testing.T) {
		s := open(t, nil)
		createTenant(t, s, "acme")
		const n = 12
		for i := range n {
			require.NoError(t, s.PutPolicy(ctx, store.PolicyRow{Tenant: "acme", Hash: fmt.Sprint("h", i)}, admin))
		}
		errs := simultaneously(n, func(i int) error { return s.ActivatePolicy(ctx, "acme", fmt.Sprint("h", i), "", admin) })
		winner := fmt.Sprint("h", requireOneWinner(t, errs, holdpoint.CodePolicyMoved))
		for _, err := range errs {
			if err != nil {
				require.Equal(t, winner, requireCode(t, holdpoint.CodePolicyMoved, err).Detail["active"])
			}
		}
		got, err := s.TenantByName(ctx, "acme")
		require.NoError(t, err)
		require.Equal(t, winner, got.ActivePolicy)
		require.Len(t, tenantEvents(t, s, "acme"), 1+n+1)
	})

	t.Run("an activation wakes", func(t *testing.T) {
		s := open(t, nil)
		createTenant(t, s, "acme")
		require.NoError(t, s.PutPolicy(ctx, store.PolicyRow{Tenant: "acme", Hash: "h1"}, admin))
		require.NoError(t, s.ActivatePolicy(ctx, "acme", "h1", "", admin))
		select {
		case kind := <-s.Wake():
			require.Equal(t, "policy", kind)
		default:
			t.Fatal("no hint in this process")
		}
	})
}
