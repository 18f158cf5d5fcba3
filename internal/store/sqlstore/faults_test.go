package sqlstore

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/stretchr/testify/require"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/internal/store"
	"github.com/holdpoint/holdpoint/internal/testenv"
)

const waitFor = 60 * time.Second // what a condition may take on a machine that is busy with other tests

var noAnswer = &holdpoint.Error{Code: holdpoint.CodeUnavailable}

// ledger is what a caller knows: the claims that it has made and those that were answered.
type ledger struct {
	t        *testing.T
	s        *Store
	mu       sync.Mutex
	claims   map[string]store.Claim
	answered map[string]string // key → run
	refused  []error
}

func newLedger(t *testing.T, dsn string) *ledger {
	t.Helper()
	s, err := Open(t.Context(), Options{DSN: dsn})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	require.NoError(t, s.Migrate(t.Context()))
	require.NoError(t, s.CreateTenant(t.Context(), store.Tenant{Name: "acme", EffectKey: []byte("e"), IndexKey: []byte("i")}, holdpoint.Who{Kind: "local"}))
	return &ledger{t: t, s: s, claims: map[string]store.Claim{}, answered: map[string]string{}}
}

// claim makes one claim, or repeats it, and writes down what came of it. An error must be clear.
func (l *ledger) claim(ctx context.Context, key string, size int) error {
	l.mu.Lock()
	c, known := l.claims[key]
	if !known {
		payload := make([]byte, size) // nothing that a database could make smaller
		_, _ = rand.Read(payload)
		c = store.Claim{RunID: uuid.NewString(), Tenant: "acme", Scope: "s", Workflow: "w", Key: key, KeyHMAC: "hmac-" + key, Fingerprint: "f", FingerprintRule: "r",
			Owner: uuid.NewString(), OwnerExplicit: true, Lease: time.Hour, Cap: time.Hour, AttemptLimit: 3, Budget: time.Hour, StealCap: 3,
			Payload: payload, RunKey: []byte("k"), Who: holdpoint.Who{Kind: "machine"}}
		l.claims[key] = c
	}
	l.mu.Unlock()
	got, err := l.s.ClaimRuns(ctx, []store.Claim{c})
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		l.refused = append(l.refused, err)
		return err
	}
	if got[0].Outcome != holdpoint.Claimed {
		return fmt.Errorf("claim %s: %s", key, got[0].Outcome)
	}
	if before := l.answered[key]; before != "" && before != got[0].Run.ID {
		return fmt.Errorf("claim %s has two runs", key)
	}
	l.answered[key] = got[0].Run.ID
	return nil
}

// balance repeats every claim that was not answered, as its caller would, and holds the store to the ledger: each claim
// has exactly one run, what was acknowledged is that run, and every error in between was clear.
func (l *ledger) balance() {
	l.t.Helper()
	for key := range l.claims {
		require.NoError(l.t, l.until(func() error { return l.claim(l.t.Context(), key, 1) }))
	}
	runs := l.table("SELECT key, id FROM runs")
	require.Len(l.t, runs, len(l.claims), "nothing is doubled and nothing is lost")
	for _, r := range runs {
		require.Equal(l.t, l.answered[r[0]], r[1])
	}
	require.Empty(l.t, l.table("SELECT run_id, '' FROM events WHERE run_id <> '' GROUP BY run_id HAVING COUNT(*) <> MAX(run_seq)"), "gapless")
	require.Empty(l.t, l.table("SELECT run_id, '' FROM events WHERE type = 'run.claimed' GROUP BY run_id HAVING COUNT(*) <> 1"), "claimed once")
	for _, err := range l.refused {
		l.clear(err)
	}
}

// ready waits until the store serves again, which it does by itself.
func (l *ledger) ready() {
	l.t.Helper()
	require.NoError(l.t, l.until(func() error { return l.s.Ping(l.t.Context()) }))
}

// table reads two columns, past every verb.
func (l *ledger) table(query string) (all [][2]string) {
	l.t.Helper()
	rows, err := l.s.read.QueryContext(l.t.Context(), query)
	require.NoError(l.t, err)
	defer rows.Close()
	for rows.Next() {
		var r [2]string
		require.NoError(l.t, rows.Scan(&r[0], &r[1]))
		all = append(all, r)
	}
	require.NoError(l.t, rows.Err())
	return all
}

// clear holds an error to its code, and to one sentence that says what to do.
func (l *ledger) clear(err error) {
	l.t.Helper()
	var e *holdpoint.Error
	require.ErrorAs(l.t, err, &e)
	require.Equal(l.t, holdpoint.CodeUnavailable, e.Code)
	require.Contains(l.t, e.Message, "repeat the call")
	require.NotContains(l.t, e.Message, "\n")
	require.NotContains(l.t, e.Message, "SQLSTATE")
}

// until repeats a call while it is unavailable.
func (l *ledger) until(call func() error) (err error) {
	for deadline := time.Now().Add(waitFor); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if err = call(); !errors.Is(err, noAnswer) {
			return err
		}
	}
	return err
}

// says reports whether some refused call told what an operator can do.
func (l *ledger) says(why string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, err := range l.refused {
		var e *holdpoint.Error
		if errors.As(err, &e) && strings.Contains(e.Message, why) {
			return true
		}
	}
	return false
}

// on is the ledger for a subtest.
func (l *ledger) on(name string, fn func(t *testing.T)) {
	l.t.Helper()
	above := l.t
	defer func() { l.t = above }()
	l.t.Run(name, func(t *testing.T) { l.t = t; fn(t) })
}

// under runs callers that claim one key after another while fn disturbs the store.
func (l *ledger) under(callers int, fn func()) {
	l.t.Helper()
	ctx, stop := context.WithCancel(l.t.Context())
	l.mu.Lock()
	round := len(l.claims) // keys of this disturbance are new
	l.mu.Unlock()
	var wg sync.WaitGroup
	for c := range callers {
		wg.Go(func() {
			for n := 0; ctx.Err() == nil && n < 2000; n++ {
				if err := l.claim(l.t.Context(), fmt.Sprintf("%d-%d-%d", round, c, n), 1); err != nil {
					time.Sleep(5 * time.Millisecond)
				}
			}
		})
	}
	fn()
	stop()
	wg.Wait()
}

// have waits until as many claims have been answered.
func (l *ledger) have(n int) {
	l.t.Helper()
	require.Eventually(l.t, func() bool { l.mu.Lock(); defer l.mu.Unlock(); return len(l.answered) >= n }, waitFor, 10*time.Millisecond)
}

func (l *ledger) count() int { l.mu.Lock(); defer l.mu.Unlock(); return len(l.answered) }

func TestPostgresFaults(t *testing.T) {
	t.Parallel()
	c := testenv.PostgresCluster(t, "max_connections = 20")
	l := newLedger(t, c.URL())
	exec := func(statement string, args ...any) {
		t.Helper()
		db, err := sql.Open("pgx", c.URL()+"&options=-c%20default_transaction_read_only%3Doff")
		require.NoError(t, err)
		defer db.Close()
		_, err = db.ExecContext(t.Context(), statement, args...)
		require.NoError(t, err, statement)
	}

	for name, how := range map[string]func(){
		"stopped in order":    func() { c.Stop(t, testenv.StopFast) },
		"stopped as by crash": func() { c.Stop(t, testenv.StopImmediate) },
	} {
		l.on(name, func(t *testing.T) {
			l.under(4, func() {
				l.have(l.count() + 20)
				how()
				require.ErrorIs(t, l.claim(t.Context(), "while "+name, 1), noAnswer)
				require.ErrorIs(t, l.s.Ping(t.Context()), noAnswer)
				c.Start(t)
				l.have(l.count() + 20)
			})
			l.balance()
			require.True(t, l.says(faultAway) || l.says(faultStopping))
		})
	}

	// A commit that waits for a standby is durable here and unanswered: the ambiguous case itself.
	l.on("a backend ends in the middle of its commit", func(t *testing.T) {
		exec("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
		exec("SELECT pg_reload_conf()")
		defer func() {
			exec("ALTER SYSTEM RESET synchronous_standby_names")
			exec("SELECT pg_reload_conf()")
		}()
		db, err := sql.Open("pgx", c.URL())
		require.NoError(t, err)
		defer db.Close()
		waits := func() bool {
			var n int
			return db.QueryRowContext(t.Context(), "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'").Scan(&n) == nil && n > 0
		}
		// The server takes its new setting up in its own time: commits go through until then.
		var key string
		done := make(chan error, 1)
		for n, until := 0, time.Now().Add(waitFor); !waits(); n++ {
			require.True(t, time.Now().Before(until), "a commit waits")
			key = fmt.Sprint("ambiguous-", n)
			go func() { done <- l.claim(context.Background(), key, 1) }()
			var through bool
			require.Eventually(t, func() bool {
				select {
				case err := <-done:
					require.NoError(t, err)
					through = true
				default:
				}
				return through || waits()
			}, waitFor, 10*time.Millisecond)
		}
		exec("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'")
		require.ErrorIs(t, <-done, noAnswer)
		// What follows meets no standby either; a wait that the server gives up on is a commit with a warning.
		exec("ALTER SYSTEM RESET synchronous_standby_names")
		exec("SELECT pg_reload_conf()")
		var runs int
		require.NoError(t, db.QueryRowContext(t.Context(), "SELECT count(*) FROM runs WHERE key = $1", key).Scan(&runs))
		require.Equal(t, 1, runs, "it was committed, and its caller does not know")
		l.balance()
	})

	l.on("a backend is killed", func(t *testing.T) {
		l.under(4, func() {
			l.have(l.count() + 20)
			exec("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'")
			l.have(l.count() + 20)
		})
		l.balance()
	})

	// A file that may not grow is what the disk looks like that is full, for every user and in every sandbox.
	l.on("tables cannot grow", func(t *testing.T) {
		c.Limit(t, 3<<20)
		var err error
		for n := 0; err == nil && n < 200; n++ {
			err = l.claim(t.Context(), fmt.Sprintf("large-%d", n), 64<<10)
			if err != nil {
				require.ErrorIs(t, err, noAnswer)
			}
		}
		require.Error(t, err, "the table is full")
		c.Limit(t, 0)
		l.balance()
	})

	// The server's own word for a full disk, at the moment at which it says so: while a row is written.
	l.on("the disk is full", func(t *testing.T) {
		exec(`CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'could not extend file' USING ERRCODE = 'disk_full'; END $$`)
		exec("CREATE TRIGGER full_disk BEFORE INSERT ON runs FOR EACH ROW EXECUTE FUNCTION full_disk()")
		err := l.claim(t.Context(), "on a full disk", 1)
		require.ErrorContains(t, err, "the disk of the database is full; free space there, then repeat the call")
		require.ErrorIs(t, l.s.Ping(t.Context()), noAnswer, "not ready while the disk is full")
		require.ErrorContains(t, l.s.Ping(t.Context()), faultFull)
		exec("DROP TRIGGER full_disk ON runs")
		l.balance()
	})

	l.on("no connection is left", func(t *testing.T) {
		var held []*sql.Conn
		db, err := sql.Open("pgx", c.URL())
		require.NoError(t, err)
		defer db.Close()
		l.s.write.SetMaxIdleConns(0)
		for err == nil && len(held) < 30 {
			var conn *sql.Conn
			if conn, err = db.Conn(t.Context()); err == nil {
				held = append(held, conn)
			}
		}
		require.Equal(t, faultCrowded, fault(err))
		began := time.Now()
		require.ErrorContains(t, l.claim(t.Context(), "crowded", 1), faultCrowded)
		require.Less(t, time.Since(began), waitFor)
		for _, conn := range held {
			require.NoError(t, conn.Close())
		}
		require.NoError(t, db.Close())
		l.s.write.SetMaxIdleConns(24)
		l.balance()
	})

	l.on("another transaction holds the row", func(t *testing.T) {
		db, err := sql.Open("pgx", c.URL())
		require.NoError(t, err)
		defer db.Close()
		tx, err := db.BeginTx(t.Context(), nil)
		require.NoError(t, err)
		_, err = tx.ExecContext(t.Context(), "SELECT 1 FROM runs WHERE key = 'crowded' FOR UPDATE")
		require.NoError(t, err)
		began := time.Now()
		require.ErrorContains(t, l.claim(t.Context(), "crowded", 1), faultContended)
		require.GreaterOrEqual(t, time.Since(began), lockWait)
		require.NoError(t, tx.Rollback())
		l.balance()
	})

	l.on("the server may only be read", func(t *testing.T) {
		exec("ALTER DATABASE postgres SET default_transaction_read_only = on")
		l.s.write.SetMaxIdleConns(0)
		require.ErrorContains(t, l.claim(t.Context(), "read only", 1), faultReadOnly)
		exec("ALTER DATABASE postgres RESET default_transaction_read_only")
		l.s.write.SetMaxIdleConns(24)
		l.balance()
		l.ready()
	})
}

func TestSQLiteFaults(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "holdpoint.db")
	l := newLedger(t, "sqlite:"+path)
	require.NoError(t, l.claim(t.Context(), "before", 1))

	l.on("another process writes", func(t *testing.T) {
		other, err := sql.Open("sqlite", "file:"+path+"?_txlock=immediate")
		require.NoError(t, err)
		defer other.Close()
		tx, err := other.BeginTx(t.Context(), nil)
		require.NoError(t, err)
		began := time.Now()
		require.ErrorContains(t, l.claim(t.Context(), "busy", 1), faultContended)
		require.GreaterOrEqual(t, time.Since(began), 4*time.Second, "it is waited for")
		require.Less(t, time.Since(began), 20*time.Second, "and not for long")
		require.NoError(t, tx.Rollback())
		l.balance()
	})

	l.on("the disk is full", func(t *testing.T) {
		_, err := l.s.write.ExecContext(t.Context(), "PRAGMA max_page_count = 1") // no fewer than there are
		require.NoError(t, err)
		for n := 0; err == nil && n < 200; n++ {
			err = l.claim(t.Context(), fmt.Sprintf("large-%d", n), 64<<10)
		}
		require.ErrorContains(t, err, "the disk of the database is full; free space there, then repeat the call")
		require.ErrorContains(t, l.s.Ping(t.Context()), faultFull, "not ready while the disk is full")
		_, err = l.s.write.ExecContext(t.Context(), "PRAGMA max_page_count = 1073741823")
		require.NoError(t, err)
		l.balance()
		l.ready()
	})

	// A write version that SQLite does not know makes a file one to be read, for every user.
	t.Run("the file may only be read", func(t *testing.T) {
		closed := filepath.Join(t.TempDir(), "holdpoint.db")
		s := newLedger(t, "sqlite:"+closed).s
		require.NoError(t, s.Close())
		text, err := os.ReadFile(closed)
		require.NoError(t, err)
		text[18] = 3
		require.NoError(t, os.WriteFile(closed, text, 0o600))
		s, err = Open(t.Context(), Options{DSN: "sqlite:" + closed})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, s.Close()) })
		_, err = s.ListTenants(t.Context())
		require.NoError(t, err, "it can be read")
		err = s.CreateTenant(t.Context(), store.Tenant{Name: "other"}, holdpoint.Who{Kind: "local"})
		require.ErrorIs(t, err, noAnswer)
		require.ErrorContains(t, err, faultReadOnly)
		require.ErrorContains(t, s.Ping(t.Context()), faultReadOnly)
	})
}

func TestEveryKnownFaultSaysWhatToDo(t *testing.T) {
	for code, why := range map[string]string{"53100": faultFull, "53200": faultMemory, "53300": faultCrowded, "57P01": faultStopping, "57P02": faultStopping,
		"57P03": faultStopping, "08006": faultAway, "08001": faultAway, "25006": faultReadOnly, "55P03": faultContended, "57014": faultLate, "58030": faultBroken,
		"XX000": "", "23505": ""} {
		require.Equal(t, why, fault(fmt.Errorf("wrapped: %w", &pgconn.PgError{Code: code})), code)
	}
	for code, why := range map[int]string{13: faultFull, 7: faultMemory, 8: faultReadOnly, 8 | 4<<8: faultReadOnly, 5: faultContended, 6: faultContended,
		10: faultBroken, 10 | 3<<8: faultBroken, 14: faultAway, 1: "", 19: ""} {
		require.Equal(t, why, sqliteFault(code), code)
	}
	require.Equal(t, faultLate, fault(context.DeadlineExceeded))
	err := unavailable("X", errors.New("secret detail"))
	var e *holdpoint.Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, "the store did not answer X; repeat the call", e.Message)
}
