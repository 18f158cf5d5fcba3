package storetest

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/internal/store"
)

var (
	admin = holdpoint.Who{Kind: "person", ID: "admin", How: "session"}
	local = holdpoint.Who{Kind: "local", ID: "ops", How: "shell"}
)

// addPerson makes a person and gives the id.
func addPerson(t testing.TB, s store.Store, tenant, email string) string {
	t.Helper()
	id := newID()
	require.NoError(t, s.CreatePerson(context.Background(), holdpoint.Person{ID: id, Tenant: tenant, Email: email, Password: "phc"}, admin))
	return id
}

func newID() string { return uuid.Must(uuid.NewV7()).String() }

// tenantEvents gives the types of a tenant's own events in order, and checks that their numbers have no gap.
func tenantEvents(t testing.TB, s store.Store, tenant string) []string {
	t.Helper()
	events, err := s.Events(context.Background(), tenant, "")
	require.NoError(t, err)
	var types []string
	for i, e := range events {
		require.EqualValues(t, i+1, e.Seq)
		require.Empty(t, e.RunID)
		require.Equal(t, tenant, e.Tenant)
		types = append(types, e.Type)
	}
	return types
}

func testPeople(t *testing.T, open func(t testing.TB, now func() time.Time) store.Store) {
	ctx := context.Background()

	t.Run("a person is found by e-mail in any case and by id, in its tenant only", func(t *testing.T) {
		s := open(t, nil)
		createTenant(t, s, "acme")
		createTenant(t, s, "other")
		p := holdpoint.Person{ID: newID(), Tenant: "acme", Email: "Ana@Acme.Example", Password: "phc", MustChange: true, Language: "de", GrantedRoles: []string{"operator", "auditor"}}
		require.NoError(t, s.CreatePerson(ctx, p, admin))

		got, err := s.PersonByEmail(ctx, "acme", "aNA@acme.example")
		require.NoError(t, err)
		require.False(t, got.CreatedAt.IsZero())
		want := p
		want.Email, want.CreatedAt, want.GrantedRoles = "ana@acme.example", got.CreatedAt, []string{"auditor", "operator"}
		require.Equal(t, want, got)
		got, err = s.PersonByID(ctx, "acme", p.ID)
		require.NoError(t, err)
		require.Equal(t, want, got)

		_, err = s.PersonByEmail(ctx, "other", p.Email)
		requireCode(t, holdpoint.CodeNotFound, err)
		_, err = s.PersonByID(ctx, "other", p.ID)
		requireCode(t, holdpoint.CodeNotFound, err)
		require.Equal(t, []string{"tenant.created", "person.created", "role.granted", "role.granted"}, tenantEvents(t, s, "acme"))
		require.Equal(t, []string{"tenant.created"}, tenantEvents(t, s, "other"))
	})

	t.Run("one e-mail is one person of a tenant, whoever is first", func(t *testing.T) {
		s := open(t, nil)
		createTenant(t, s, "acme")
		createTenant(t, s, "other")
		errs := simultaneously(8, func(i int) error {
			email := []string{"ana@acme.example", "ANA@acme.example"}[i%2]
			return s.CreatePerson(ctx, holdpoint.Person{ID: newID(), Tenant: "acme", Email: email}, admin)
		})
		requireOneWinner(t, errs, holdpoint.CodeExists)
		require.Equal(t, []string{"tenant.created", "person.created"}, tenantEvents(t, s, "acme"))

		addPerson(t, s, "other", "ana@acme.example")
		requireCode(t, holdpoint.CodeNotFound, s.CreatePerson(ctx, holdpoint.Person{ID: newID(), Tenant: "nobody", Email: "x@y.example"}, admin))
		bo := addPerson(t, s, "acme", "bo@acme.example")
		people, err := s.ListPeople(ctx, "acme")
		require.NoError(t, err)
		require.Len(t, people, 2)
		require.Equal(t, "ana@acme.example", people[0].Email)
		require.Equal(t, bo, people[1].ID)
		require.Equal(t, []string{}, people[1].GrantedRoles)
	})

	t.Run("roles are granted once and revoked once", func(t *testing.T) {
		s := open(t, nil)
		createTenant(t, s, "acme")
		id := addPerson(t, s, "acme", "ana@acme.example")
		for range 2 {
			require.NoError(t, s.GrantRole(ctx, "acme", id, "operator", admin))
		}
		require.NoError(t, s.GrantRole(ctx, "acme", id, "auditor", admin))
		p, err := s.PersonByID(ctx, "acme", id)
		require.NoError(t, err)
		require.Equal(t, []string{"auditor", "operator"}, p.GrantedRoles)

		require.NoError(t, s.RevokeRole(ctx, "acme", id, "operator", admin))
		requireCode(t, holdpoint.CodeNotFound, s.RevokeRole(ctx, "acme", id, "operator", admin))
		requireCode(t, holdpoint.CodeNotFound, s.RevokeRole(ctx, "acme", "nobody", "operator", admin))
		requireCode(t, holdpoint.CodeNotFound, s.GrantRole(ctx, "acme", "nobody", "operator", admin))
		requireCode(t, holdpoint.CodeNotFound, s.GrantRole(ctx, "nowhere", id, "operator", admin))
		p, err = s.PersonByID(ctx, "acme", id)
		require.NoError(t, err)
		require.Equal(t, []string{"auditor"}, p.GrantedRoles)
		require.Equal(t, []string{"tenant.created", "person.created", "role.granted", "role.granted", "role.revoked"}, tenantEvents(t, s, "acme"))

		events, err := s.Events(ctx, "acme", "")
		require.NoError(t, err)
		last := events[len(events)-1]
		require.Equal(t, admin, last.Who)
		require.Equal(t, map[string]any{"person_id": id, "role": "operator"}, last.Data)
	})

	t.Run("a new password ends the sessions of that person only", func(t *testing.T) {
		s := open(t, nil)
		createTenant(t, s, "acme")
		ana, bo := addPerson(t, s, "acme", "ana@acme.example"), addPerson(t, s, "acme", "bo@acme.example")
		require.NoError(t, s.CreateSession(ctx, "acme", ana, "ana1", time.Hour, time.Hour, admin))
		require.NoError(t, s.CreateSession(ctx, "acme", ana, "ana2", time.Hour, time.Hour, admin))
		require.NoError(t, s.CreateSession(ctx, "acme", bo, "bo1", time.Hour, time.Hour, admin))
		require.NoError(t, s.SetPassword(ctx, "acme", ana, "phc2", true, admin))

		for _, hash := range []string{"ana1", "ana2"} {
			_, err := s.SessionByHash(ctx, hash)
			requireCode(t, holdpoint.CodeNotFound, err)
		}
		_, err := s.SessionByHash(ctx, "bo1")
		require.NoError(t, err)
		p, err := s.PersonByID(ctx, "acme", ana)
		require.NoError(t, err)
		require.Equal(t, "phc2", p.Password)
		require.True(t, p.MustChange)
		requireCode(t, holdpoint.CodeNotFound, s.SetPassword(ctx, "acme", "nobody", "phc", false, admin))
		events, err := s.Events(ctx, "acme", "")
		require.NoError(t, err)
		require.Equal(t, "person.password_changed", events[len(events)-1].Type)
		require.EqualValues(t, 2, events[len(events)-1].Data["sessions_ended"])
		for _, e := range events {
			require.NotContains(t, fmt.Sprint(e.Data), "phc", "no password hash is evidence")
		}
	})

	t.Run("disabling ends sessions and tokens for good", func(t *testing.T) {
		s := open(t, nil)
		createTenant(t, s, "acme")
		ana := addPerson(t, s, "acme", "ana@acme.example")
		require.NoError(t, s.CreateSession(ctx, "acme", ana, "session", time.Hour, time.Hour, admin))
		require.NoError(t, s.CreateKey(ctx, personToken("acme", ana), "token", admin))
		require.NoError(t, s.CreateKey(ctx, machineKey("acme"), "machine", admin))
		for range 2 {
			require.NoError(t, s.SetDisabled(ctx, "acme", ana, true, admin))
		}
		gone := func() {
			_, err := s.SessionByHash(ctx, "session")
			requireCode(t, holdpoint.CodeNotFound, err)
			_, _, err = s.KeyByHash(ctx, "token")
			requireCode(t, holdpoint.CodeNotFound, err)
		}
		gone()
		_, _, err := s.KeyByHash(ctx, "machine")
		require.NoError(t, err)
		requireCode(t, holdpoint.CodeNotFound, s.CreateSession(ctx, "acme", ana, "again", time.Hour, time.Hour, admin))
		requireCode(t, holdpoint.CodeNotFound, s.CreateKey(ctx, personToken("acme", ana), "again", admin))

		require.NoError(t, s.SetDisabled(ctx, "acme", ana, false, admin))
		gone()
		require.NoError(t, s.CreateSession(ctx, "acme", ana, "again", time.Hour, time.Hour, admin))
		require.Equal(t, []string{"tenant.created", "person.created", "session.created", "key.created", "key.created", "person.disabled", "person.enabled", "session.created"},
			tenantEvents(t, s, "acme"))
		requireCode(t, holdpoint.CodeNotFound, s.SetDisabled(ctx, "acme", "nobody", true, admin))
	})

	t.Run("nothing survives a disabling that races with log-ins", func(t *testing.T) {
		s := open(t, nil)
		createTenant(t, s, "acme")
		ana := addPerson(t, s, "acme", "ana@acme.example")
		errs := simultaneously(9, func(i int) error {
			switch hash := fmt.Sprint(i); {
			case i == 4:
				return s.SetDisabled(ctx, "acme", ana, true, admin)
			case i%2 == 0:
				return s.CreateSession(ctx, "acme", ana, hash, time.Hour, time.Hour, admin)
			default:
				return s.CreateKey(ctx, personToken("acme", ana), hash, admin)
			}
		})
		require.NoError(t, errs[4])
		for i, err := range errs {
			if err != nil {
				requireCode(t, holdpoint.CodeNotFound, err)
			}
			_, err = s.SessionByHash(ctx, fmt.Sprint(i))
			requireCode(t, holdpoint.CodeNotFound, err)
		}
		keys, err := s.ListKeys(ctx, "acme")
		require.NoError(t, err)
		for _, k := range keys {
			require.NotNil(t, k.RevokedAt)
		}
	})

	t.Run("a language is kept", func(t *testing.T) {
		s := open(t, nil)
		createTenant(t, s, "acme")
		ana := addPerson(t, s, "acme", "ana@acme.example")
		require.NoError(t, s.SetLanguage(ctx, "acme", ana, "de"))
		p, err := s.PersonByID(ctx, "acme", ana)
		require.NoError(t, err)
		require.Equal(t, "de", p.Language)
		requireCode(t, holdpoint.CodeNotFound, s.SetLanguage(ctx, "acme", "nobody", "de"))
	})
}
