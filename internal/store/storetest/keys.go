package storetest

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/internal/store"
)

func personToken(tenant, person string) holdpoint.Key {
	return holdpoint.Key{ID: newID(), Tenant: tenant, Kind: "person", Name: "laptop", PersonID: person, Scopes: []holdpoint.Scope{holdpoint.ScopeDecide, holdpoint.ScopeRead}}
}

func machineKey(tenant string) holdpoint.Key {
	return holdpoint.Key{ID: newID(), Tenant: tenant, Kind: "machine", Name: "n8n", Scopes: []holdpoint.Scope{holdpoint.ScopeWork}}
}

func testKeys(t *testing.T, open func(t testing.TB, now func() time.Time) store.Store) {
	ctx := context.Background()

	t.Run("a key is found by its hash with its person", func(t *testing.T) {
		s := open(t, nil)
		createTenant(t, s, "acme")
		ana := addPerson(t, s, "acme", "ana@acme.example")
		require.NoError(t, s.GrantRole(ctx, "acme", ana, "operator", admin))
		token, machine := personToken("acme", ana), machineKey("acme")
		require.NoError(t, s.CreateKey(ctx, token, "h1", admin))
		require.NoError(t, s.CreateKey(ctx, machine, "h2", admin))

		k, p, err := s.KeyByHash(ctx, "h1")
		require.NoError(t, err)
		token.CreatedAt = k.CreatedAt
		require.Equal(t, token, k)
		require.Equal(t, ana, p.ID)
		require.Equal(t, "ana@acme.example", p.Email)
		require.Equal(t, []string{"operator"}, p.GrantedRoles)
		k, p, err = s.KeyByHash(ctx, "h2")
		require.NoError(t, err)
		require.Equal(t, machine.Scopes, k.Scopes)
		require.Nil(t, p)
		_, _, err = s.KeyByHash(ctx, "h3")
		requireCode(t, holdpoint.CodeNotFound, err)

		keys, err := s.ListKeys(ctx, "acme")
		require.NoError(t, err)
		require.Len(t, keys, 2)
		require.NotNil(t, keys[0].LastUsedAt)
		none, err := s.ListKeys(ctx, "other")
		require.NoError(t, err)
		require.Empty(t, none)
	})

	t.Run("a key belongs to a machine or to a person who is there", func(t *testing.T) {
		s := open(t, nil)
		createTenant(t, s, "acme")
		createTenant(t, s, "other")
		stranger := addPerson(t, s, "other", "ana@acme.example")
		for name, c := range map[string]struct {
			key  holdpoint.Key
			code holdpoint.Code
		}{
			"no such person":        {personToken("acme", "nobody"), holdpoint.CodeNotFound},
			"person of another":     {personToken("acme", stranger), holdpoint.CodeNotFound},
			"no such tenant":        {machineKey("nowhere"), holdpoint.CodeNotFound},
			"person kind, no one":   {personToken("acme", ""), holdpoint.CodeInvalidRequest},
			"machine with a person": {func() holdpoint.Key { k := machineKey("acme"); k.PersonID = stranger; return k }(), holdpoint.CodeInvalidRequest},
		} {
			requireCode(t, c.code, s.CreateKey(ctx, c.key, name, admin))
			_, _, err := s.KeyByHash(ctx, name)
			requireCode(t, holdpoint.CodeNotFound, err)
		}
		key := machineKey("acme")
		require.NoError(t, s.CreateKey(ctx, key, "h", admin))
		requireCode(t, holdpoint.CodeExists, s.CreateKey(ctx, key, "h", admin))
		requireCode(t, holdpoint.CodeExists, s.CreateKey(ctx, machineKey("acme"), "h", admin))
		requireCode(t, holdpoint.CodeExists, s.CreateKey(ctx, key, "h2", admin))
		require.Equal(t, []string{"tenant.created", "key.created"}, tenantEvents(t, s, "acme"))
	})

	t.Run("a revoked key is gone at once", func(t *testing.T) {
		s := open(t, nil)
		createTenant(t, s, "acme")
		key := machineKey("acme")
		require.NoError(t, s.CreateKey(ctx, key, "h", admin))
		for range 2 { // the second call stands for a lost answer
			require.NoError(t, s.RevokeKey(ctx, "acme", key.ID, admin))
		}
		_, _, err := s.KeyByHash(ctx, "h")
		requireCode(t, holdpoint.CodeNotFound, err)
		requireCode(t, holdpoint.CodeNotFound, s.RevokeKey(ctx, "acme", "nothing", admin))
		require.Equal(t, []string{"tenant.created", "key.created", "key.revoked"}, tenantEvents(t, s, "acme"))
		keys, err := s.ListKeys(ctx, "acme")
		require.NoError(t, err)
		require.NotNil(t, keys[0].RevokedAt)
	})

	t.Run("the last use is noted once a minute", func(t *testing.T) {
		f := newFixture(t, open)
		s := f.Store
		require.NoError(t, s.CreateKey(ctx, machineKey("acme"), "h", admin))
		used := func() time.Time {
			for _, err := range simultaneously(4, func(int) error { _, _, err := s.KeyByHash(ctx, "h"); return err }) {
				require.NoError(t, err)
			}
			keys, err := s.ListKeys(ctx, "acme")
			require.NoError(t, err)
			return *keys[0].LastUsedAt
		}
		first := f.now()
		require.Equal(t, first, used())
		f.advance(59 * time.Second)
		require.Equal(t, first, used())
		f.advance(time.Second)
		require.Equal(t, first.Add(time.Minute), used())
		f.advance(-time.Hour)
		require.Equal(t, first.Add(time.Minute), used(), "a clock that was set back leaves what stands")
	})

	t.Run("a session ends by idleness, by its absolute limit and by log-out", func(t *testing.T) {
		f := newFixture(t, open)
		s := f.Store
		ana := addPerson(t, s, "acme", "ana@acme.example")
		start := func(hash string) {
			require.NoError(t, s.CreateSession(ctx, "acme", ana, hash, 30*time.Minute, 2*time.Hour, admin))
		}
		live := func(hash string) bool {
			p, err := s.SessionByHash(ctx, hash)
			if err != nil {
				requireCode(t, holdpoint.CodeNotFound, err)
				return false
			}
			return p.ID == ana && p.Email == "ana@acme.example"
		}
		start("idle")
		f.advance(30*time.Minute - time.Microsecond)
		require.True(t, live("idle"), "until the limit, and each use slides it")
		f.advance(30*time.Minute - time.Microsecond)
		require.True(t, live("idle"))
		f.advance(30 * time.Minute)
		require.False(t, live("idle"))

		start("absolute")
		for range 4 {
			require.True(t, live("absolute"))
			f.advance(29 * time.Minute)
		}
		require.True(t, live("absolute"))
		f.advance(4 * time.Minute)
		require.False(t, live("absolute"), "use does not move the absolute limit")

		start("out")
		require.True(t, live("out"))
		for range 2 {
			require.NoError(t, s.EndSession(ctx, "out"))
		}
		require.False(t, live("out"))

		start("quick")
		f.advance(59 * time.Second)
		require.True(t, live("quick"))
		f.advance(29*time.Minute + time.Second)
		require.False(t, live("quick"), "a use within the first minute slides nothing")

		start("twice")
		requireCode(t, holdpoint.CodeExists, s.CreateSession(ctx, "acme", ana, "twice", time.Hour, time.Hour, admin))
		requireCode(t, holdpoint.CodeNotFound, s.CreateSession(ctx, "acme", "nobody", "x", time.Hour, time.Hour, admin))
		require.False(t, live("unknown"))
	})
}
