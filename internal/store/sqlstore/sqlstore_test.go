package sqlstore_test

import (
	"context"
	"errors"
	"net/url"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/internal/store"
	"github.com/holdpoint/holdpoint/internal/store/sqlstore"
	"github.com/holdpoint/holdpoint/internal/store/storetest"
	"github.com/holdpoint/holdpoint/internal/testenv"
)

func TestSQLite(t *testing.T) {
	t.Parallel()
	open := func(t testing.TB, now func() time.Time) store.Store {
		s := connect(t, sqlstore.Options{DSN: "sqlite:" + filepath.Join(t.TempDir(), "holdpoint.db"), Now: now})
		require.NoError(t, s.Migrate(t.Context()))
		return s
	}
	storetest.Run(t, open)
	t.Run("Model", func(t *testing.T) { storetest.Model(t, open) })
}

func TestPostgres(t *testing.T) {
	t.Parallel()
	open := func(t testing.TB, now func() time.Time) store.Store {
		dsn := migrated.Postgres(t)
		return connect(t, sqlstore.Options{DSN: dsn, Direct: dsn, Now: now})
	}
	storetest.Run(t, open)
	t.Run("Model", func(t *testing.T) { storetest.Model(t, open) })
}

// A pooler in transaction mode gives each transaction another connection: nothing may rest on a session.
func TestPgBouncer(t *testing.T) {
	t.Parallel()
	pooler, err := url.Parse(testenv.PgBouncer(t, migrated.Postgres(t)))
	require.NoError(t, err)
	storetest.Run(t, func(t testing.TB, now func() time.Time) store.Store {
		database, err := url.Parse(migrated.Postgres(t))
		require.NoError(t, err)
		database.Host = pooler.Host // it pools every database of its server
		return connect(t, sqlstore.Options{DSN: database.String(), Now: now})
	})
}

// Two replicas are two stores over one database.
func TestReplicas(t *testing.T) {
	dsn := migrated.Postgres(t)
	a, b := connect(t, sqlstore.Options{DSN: dsn}), connect(t, sqlstore.Options{DSN: dsn})
	who := holdpoint.Who{Kind: "local"}
	require.NoError(t, a.CreateTenant(t.Context(), store.Tenant{Name: "acme", EffectKey: []byte("e"), IndexKey: []byte("i")}, who))
	storetest.Races(t, a, b)
	storetest.OutboxRaces(t, a, b)
}

// migrated is copied for each test, which costs far less than to migrate each.
var migrated = testenv.Template{Prepare: func(ctx context.Context, dsn string) error {
	s, err := sqlstore.Open(ctx, sqlstore.Options{DSN: dsn})
	if err != nil {
		return err
	}
	return errors.Join(s.Migrate(ctx), s.Close())
}}

func connect(t testing.TB, o sqlstore.Options) *sqlstore.Store {
	t.Helper()
	s, err := sqlstore.Open(t.Context(), o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}
