//go:build e2e

// Package e2e holds the real binary against its promises: as processes that are started, killed and stopped, on SQLite
// and PostgreSQL, with a provider that counts what arrives, a mail server and a browser. `make e2e` runs it.
package e2e

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The bounds of a wait. Each is far above what the condition takes; they only keep a broken build from hanging.
const (
	soon  = 60 * time.Second // what happens at once, or at the next poll
	later = 2 * time.Minute  // what waits for the lease of a lost process
)

// binary is the binary under test.
func binary(t testing.TB) string {
	t.Helper()
	path := os.Getenv("HOLDPOINT_BIN")
	if path == "" {
		t.Fatal("HOLDPOINT_BIN does not name the binary under test; run `make e2e`")
	}
	path, err := filepath.Abs(path)
	require.NoError(t, err)
	return path
}

// pausable is the same program with its named points compiled in.
var pausable struct {
	once sync.Once
	dir  string
	err  error
}

func pausableBinary(t testing.TB) string {
	t.Helper()
	pausable.once.Do(func() {
		if pausable.dir, pausable.err = os.MkdirTemp("", "holdpoint-e2e-"); pausable.err != nil {
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-tags", "killpoints", "-o", filepath.Join(pausable.dir, "holdpoint"), "./cmd/holdpoint")
		cmd.Dir = repository(t)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Logf("%s", out)
			pausable.err = err
		}
	})
	require.NoError(t, pausable.err)
	return filepath.Join(pausable.dir, "holdpoint")
}

func TestMain(m *testing.M) {
	code := m.Run()
	if pausable.dir != "" {
		_ = os.RemoveAll(pausable.dir)
	}
	os.Exit(code)
}

// repository is the directory of go.mod; go test runs this package one level below.
func repository(t testing.TB) string {
	t.Helper()
	dir, err := filepath.Abs("..")
	require.NoError(t, err)
	require.FileExists(t, filepath.Join(dir, "go.mod"))
	return dir
}

// place is where a world keeps its store.
type place string

const (
	sqlite   place = "sqlite"
	postgres place = "postgres"
	pooled   place = "pgbouncer" // PostgreSQL through a pooler that keeps nothing from one transaction to the next
)

// on runs a test in each place, beside other tests.
func on(t *testing.T, run func(t *testing.T, p place), places ...place) {
	t.Parallel()
	for _, p := range places {
		t.Run(string(p), func(t *testing.T) {
			t.Parallel()
			run(t, p)
		})
	}
}

// eventually waits for a condition that holds from then on.
func eventually(t testing.TB, limit time.Duration, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(limit); ; {
		if holds() {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("after %s still not so: %s", limit, what)
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-t.Context().Done():
			t.Fatalf("stopped while waiting for: %s", what)
		}
	}
}
