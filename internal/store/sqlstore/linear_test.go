package sqlstore_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdpoint/holdpoint/internal/store"
	"github.com/holdpoint/holdpoint/internal/store/sqlstore"
	"github.com/holdpoint/holdpoint/internal/store/storetest"
	"github.com/holdpoint/holdpoint/internal/store/storetest/linear"
)

// TestMain plays a part of a history in the processes that TestLinearizable starts.
func TestMain(m *testing.M) {
	played, err := linear.Process(os.Stdout, func(ctx context.Context, dsn string) (store.Store, error) {
		return sqlstore.Open(ctx, sqlstore.Options{DSN: dsn})
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if !played {
		os.Exit(m.Run())
	}
}

// Whatever clients do at once, each run and each effect answers as one that takes one call at a time.
func TestLinearizable(t *testing.T) {
	file := func(t *testing.T) string { return "sqlite:" + filepath.Join(t.TempDir(), "holdpoint.db") }
	t.Run("SQLite", func(t *testing.T) {
		s := connect(t, sqlstore.Options{DSN: file(t)})
		require.NoError(t, s.Migrate(t.Context()))
		linear.Check(t, s)
	})
	t.Run("PostgreSQL, two stores", func(t *testing.T) {
		dsn := migrated.Postgres(t)
		linear.Check(t, connect(t, sqlstore.Options{DSN: dsn}), connect(t, sqlstore.Options{DSN: dsn}))
	})
	t.Run("SQLite, two processes", func(t *testing.T) {
		dsn := file(t)
		s := connect(t, sqlstore.Options{DSN: dsn})
		require.NoError(t, s.Migrate(t.Context()))
		linear.Processes(t, s, dsn, 2)
	})
	t.Run("PostgreSQL, two processes", func(t *testing.T) {
		dsn := migrated.Postgres(t)
		linear.Processes(t, connect(t, sqlstore.Options{DSN: dsn}), dsn, 2)
	})
}

// Every pair of state and event of every table of transitions moves as the table says, or not at all.
func TestWalks(t *testing.T) {
	t.Parallel()
	t.Run("SQLite", func(t *testing.T) {
		storetest.Walks(t, func(t testing.TB, now func() time.Time) store.Store {
			s := connect(t, sqlstore.Options{DSN: "sqlite:" + filepath.Join(t.TempDir(), "holdpoint.db"), Now: now})
			require.NoError(t, s.Migrate(t.Context()))
			return s
		})
	})
	t.Run("PostgreSQL", func(t *testing.T) {
		storetest.Walks(t, func(t testing.TB, now func() time.Time) store.Store {
			return connect(t, sqlstore.Options{DSN: migrated.Postgres(t), Now: now})
		})
	})
}
