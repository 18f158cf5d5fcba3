// Package sqlstore keeps Holdpoint's rows in SQLite or PostgreSQL. One body of hand-written SQL serves both: statements
// use $N placeholders, and only {{now}} (the database's clock in microseconds), {{for_update}}, {{for_share}},
// {{skip_locked}} and {{approved_run}} differ. $1 of a statement that reads the clock is always the explicit instant of a test, or NULL.
package sqlstore

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"
	"modernc.org/sqlite"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/internal/killpoint"
	"github.com/holdpoint/holdpoint/internal/store"
)

//go:embed migrations/*.sql
var migrations embed.FS

// Options opens a store.
type Options struct {
	DSN    string           // sqlite:PATH or postgres://…
	Direct string           // PostgreSQL connection that does not pass a transaction pooler, for LISTEN and migrations; "" polls
	Now    func() time.Time // tests only: an explicit clock in place of the database's; nil in production
	Log    *slog.Logger     // nil discards
}

// Store implements store.Store.
type Store struct {
	write    *sql.DB // SQLite: a pool of one; PostgreSQL: the pool
	read     *sql.DB
	direct   string
	postgres bool
	pooled   bool // PostgreSQL behind a pooler: connections keep no state from one transaction to the next
	words    *strings.Replacer
	expanded sync.Map // statement → its text in this dialect
	now      func() time.Time
	log      *slog.Logger
	wake     chan string
	news     chan string   // kinds of work that other processes are to be told of
	written  atomic.Int64  // events committed by this process
	grown    chan struct{} // some were
	health   health
	stop     context.CancelFunc

	drafts      *gather[store.Draft, heldDraft]
	decisions   *gather[store.Decision, store.DecisionResult]
	begins      *gather[beginCall, []store.BegunAttempt]
	settlements *gather[settleCall, []store.Settled]
	keys        *gather[string, heldKey]
	contents    *gather[runRef, store.Record]
	questions   *gather[runRef, holdpoint.Approval]
	people      *gather[string, []holdpoint.Person]
}

var _ store.Store = (*Store)(nil)

// lockWait bounds how long a statement waits for another transaction. Fail closed: the call answers unavailable and
// changes nothing.
const lockWait = 5 * time.Second

// Open connects and checks the database's version and durability; it does not migrate.
func Open(ctx context.Context, o Options) (*Store, error) {
	s := &Store{direct: o.Direct, now: o.Now, log: o.Log, wake: make(chan string, 16), news: make(chan string, 64), grown: make(chan struct{}, 1)}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	switch {
	case strings.HasPrefix(o.DSN, "sqlite:"):
		if err := s.openSQLite(strings.TrimPrefix(o.DSN, "sqlite:")); err != nil {
			return nil, err
		}
	case strings.HasPrefix(o.DSN, "postgres://"), strings.HasPrefix(o.DSN, "postgresql://"):
		if err := s.openPostgres(ctx, o.DSN); err != nil {
			return nil, err
		}
	default:
		return nil, holdpoint.Errorf(holdpoint.CodeInvalidRequest, "HOLDPOINT_DB must be sqlite:PATH or postgres://…")
	}
	s.words = dialect(s.postgres)
	if err := s.Ping(ctx); err != nil {
		_ = s.Close()
		return nil, err
	}
	s.gather()
	s.gatherReads()
	ctx, s.stop = context.WithCancel(context.Background())
	if s.postgres {
		go s.tell(ctx)
		go s.survey(ctx)
		if s.direct != "" {
			go s.listen(ctx)
		}
	}
	return s, nil
}

// gather sets up the verbs whose concurrent calls share transactions.
func (s *Store) gather() {
	const most = 256
	atOnce := 1 // SQLite has one writer
	if s.postgres {
		atOnce = 6
	}
	s.drafts = newGather("HoldDraft", most, atOnce, func(d store.Draft) any { return runRef{d.Fence.Tenant, d.Fence.RunID} },
		together(s, "HoldDraft", s.holdDrafts))
	s.decisions = newGather("Decide", most, atOnce, func(d store.Decision) any { return runRef{d.Tenant, d.ApprovalID} },
		together(s, "Decide", s.decideAll))
	s.begins = newGather("begin attempts", most, atOnce, func(c beginCall) any { return runRef{c.list[0].Tenant, c.list[0].EffectID} },
		together(s, "begin attempts", s.beginAll))
	s.settlements = newGather("settle attempts", most, atOnce, nil, together(s, "settle attempts", s.settleAll))
}

// gatherReads sets up the reads that concurrent calls share.
func (s *Store) gatherReads() {
	s.keys = readTogether("key by hash", noKey, s.keysByHash)
	s.contents = readTogether("content", func(r runRef) error { return noRun(r.id) }, s.contentsOf)
	s.questions = readTogether("approval by id", func(r runRef) error { return noApproval(r.id) }, s.approvalsByID)
	s.people = readTogether("list people", func(string) error { return nil }, s.peopleOf)
}

func (s *Store) openSQLite(path string) error {
	// The files beside the store get its permissions: keys, addresses and hashes are for this user alone.
	if f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600); err == nil {
		_ = f.Close()
	}
	dsn := "file:" + path + "?_pragma=busy_timeout(5000)&_pragma=journal_mode(WAL)&_pragma=synchronous(FULL)&_pragma=foreign_keys(1)"
	var err error
	if s.write, err = sql.Open("sqlite", dsn+"&_txlock=immediate"); err != nil {
		return unavailable("open", err)
	}
	s.write.SetMaxOpenConns(1)
	if s.read, err = sql.Open("sqlite", dsn+"&_pragma=query_only(1)"); err != nil {
		return unavailable("open", err)
	}
	s.read.SetMaxOpenConns(4)
	var version string
	if err := s.write.QueryRow("SELECT sqlite_version()").Scan(&version); err != nil {
		return unavailable("open", err)
	}
	var a, b, c int
	if _, err := fmt.Sscanf(version, "%d.%d.%d", &a, &b, &c); err != nil || a*1_000_000+b*1_000+c < 3_051_003 {
		return holdpoint.Errorf(holdpoint.CodeUnavailable, "SQLite %s can corrupt a WAL database on reset; 3.51.3 or later is needed", version)
	}
	return nil
}

func (s *Store) openPostgres(ctx context.Context, dsn string) error {
	cfg, err := pgx.ParseConfig(dsn)
	if err != nil {
		return holdpoint.Errorf(holdpoint.CodeInvalidRequest, "HOLDPOINT_DB is not a PostgreSQL connection string")
	}
	s.postgres = true
	// No named statements and no session state where a pooler may give each transaction another connection.
	cfg.DefaultQueryExecMode = pgx.QueryExecModeExec
	if s.pooled, err = pooled(ctx, *cfg); err != nil {
		return unavailable("open", err)
	}
	if s.pooled {
		s.write = connections(cfg, 24)
		s.read = s.write
		return nil
	}
	cfg.DefaultQueryExecMode = pgx.QueryExecModeCacheStatement
	maps.Copy(cfg.RuntimeParams, session)
	s.read = connections(cfg, 6)
	cfg.RuntimeParams["plan_cache_mode"] = "force_generic_plan"
	s.write = connections(cfg, 18)
	return nil
}

func connections(cfg *pgx.ConnConfig, most int) *sql.DB {
	db := stdlib.OpenDB(*cfg.Copy())
	db.SetMaxOpenConns(most)
	db.SetMaxIdleConns(most)
	return db
}

// session is what a PostgreSQL session is set to. Every statement finds its rows along an index: statistics of tables that
// fill and empty within minutes are always wrong, and compiling takes longer than any of them. A statement that writes is
// also planned once for all values; a search is not, since a state may be rare or that of nearly all.
var session = map[string]string{"lock_timeout": strconv.FormatInt(lockWait.Milliseconds(), 10), "jit": "off",
	"enable_seqscan": "off", "enable_hashjoin": "off", "enable_mergejoin": "off", "enable_bitmapscan": "off"}

// setSession sets it for one transaction, behind a pooler.
var setSession = func() string {
	var set []string
	for _, name := range slices.Sorted(maps.Keys(session)) {
		set = append(set, fmt.Sprintf("set_config('%s', '%s', true)", name, session[name]))
	}
	return "SELECT " + strings.Join(set, ", ")
}()

// pooled reports whether a pooler stands between this program and the database: it makes up the backend's number that it
// tells a client.
func pooled(ctx context.Context, cfg pgx.ConnConfig) (bool, error) {
	conn, err := pgx.ConnectConfig(ctx, &cfg)
	if err != nil {
		return false, err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	var backend uint32
	err = conn.QueryRow(ctx, "SELECT CAST(pg_backend_pid() AS BIGINT)").Scan(&backend)
	return backend != conn.PgConn().PID(), err
}

// Migrate brings the schema up to date, forward only, under a session lock on PostgreSQL.
func (s *Store) Migrate(ctx context.Context) error {
	return s.schema(ctx, "migrate", func(p *goose.Provider) error {
		_, err := p.Up(ctx)
		killpoint.Reach("store.migrate.committed")
		return err
	})
}

// Current fails with not_allowed_now unless the schema is this program's: a command beside a server does not migrate.
func (s *Store) Current(ctx context.Context) error {
	return s.schema(ctx, "schema", func(p *goose.Provider) error {
		pending, err := p.HasPending(ctx)
		if err == nil && pending {
			err = holdpoint.Errorf(holdpoint.CodeNotAllowedNow, "the store is older than this program or empty; stop the server and run holdpoint migrate, or begin with holdpoint init")
		}
		return err
	})
}

// schema opens the migrations over a connection that keeps session state and hands them to fn.
func (s *Store) schema(ctx context.Context, verb string, fn func(*goose.Provider) error) error {
	db, dialect := s.write, goose.DialectSQLite3
	opts := []goose.ProviderOption{goose.WithLogger(goose.NopLogger()), goose.WithDisableGlobalRegistry(true)}
	if s.postgres {
		dialect = goose.DialectPostgres
		if s.direct != "" {
			d, err := sql.Open("pgx", s.direct)
			if err != nil {
				return unavailable(verb, err)
			}
			defer d.Close()
			db = d
		}
		locker, err := lock.NewPostgresSessionLocker()
		if err != nil {
			return err
		}
		opts = append(opts, goose.WithSessionLocker(locker))
	}
	steps, err := s.migrations()
	if err != nil {
		return err
	}
	p, err := goose.NewProvider(dialect, db, nil, append(opts, goose.WithGoMigrations(steps...))...)
	if err != nil {
		return err
	}
	err = fn(p)
	var known *holdpoint.Error
	if err == nil || errors.As(err, &known) {
		return err
	}
	return unavailable(verb, err)
}

// migrations are the embedded files in order, in this store's dialect. A statement that begins with {{postgres}} is for
// PostgreSQL alone.
func (s *Store) migrations() ([]*goose.Migration, error) {
	names, err := fs.Glob(migrations, "migrations/*.sql")
	if err != nil {
		return nil, err
	}
	var steps []*goose.Migration
	for i, name := range names {
		text, err := migrations.ReadFile(name)
		if err != nil {
			return nil, err
		}
		stmt := strings.ReplaceAll(string(text), "{{bytes}}", map[bool]string{true: "BYTEA", false: "BLOB"}[s.postgres])
		steps = append(steps, goose.NewGoMigration(int64(i+1), &goose.GoFunc{RunTx: func(ctx context.Context, tx *sql.Tx) error {
			for part := range strings.SplitSeq(stmt, ";\n") {
				part, only := strings.CutPrefix(strings.TrimSpace(part), "{{postgres}}")
				if part == "" || only && !s.postgres {
					continue
				}
				if _, err := tx.ExecContext(ctx, part); err != nil {
					return fmt.Errorf("%s: %w", name, err)
				}
				killpoint.Reach("store.migrate.statement")
			}
			return nil
		}}, nil))
	}
	return steps, nil
}

// expand puts the dialect's words into a statement.
func (s *Store) expand(q string) string {
	if text, ok := s.expanded.Load(q); ok {
		return text.(string)
	}
	text := s.words.Replace(q)
	s.expanded.Store(q, text)
	return text
}

// dialect gives the words that differ.
func dialect(postgres bool) *strings.Replacer {
	if postgres {
		return strings.NewReplacer(
			"{{now}}", "COALESCE(CAST($1 AS BIGINT), CAST(EXTRACT(EPOCH FROM statement_timestamp()) * 1000000 AS BIGINT))",
			"{{for_update}}", "FOR UPDATE", "{{for_share}}", "FOR SHARE", "{{skip_locked}}", "SKIP LOCKED",
			"{{approved_run}}", "CROSS JOIN LATERAL (SELECT r.id FROM runs r WHERE r.tenant = e.tenant AND r.id = e.run_id AND r.state = 'approved' FOR UPDATE SKIP LOCKED) r")
	}
	return strings.NewReplacer(
		"{{now}}", "COALESCE(CAST($1 AS BIGINT), CAST(unixepoch('subsec') * 1000000 AS BIGINT))",
		"{{for_update}}", "", "{{for_share}}", "", "{{skip_locked}}", "",
		"{{approved_run}}", "JOIN runs r ON r.tenant = e.tenant AND r.id = e.run_id AND r.state = 'approved'")
}

// clock is the first argument of every statement that reads {{now}}.
func (s *Store) clock() any {
	if s.now == nil {
		return nil
	}
	return s.now().UnixMicro()
}

// tx is one transaction with the verb that it belongs to.
type tx struct {
	*sql.Tx
	s      *Store
	news   []string // kinds of work that its commit brings
	events int      // that it has written
}

// verbTime bounds a verb with all its repetitions. Fail closed: a commit that waits for a standby or a server that does not
// answer is given up, and nobody knows what became of it until the call is repeated.
const verbTime = 20 * time.Second

// do runs fn in one transaction and repeats it, a bounded number of times, when the database asks for that
// (serialization failure, deadlock, busy). fn must not keep anything from a run that did not commit.
func (s *Store) do(ctx context.Context, verb string, fn func(t *tx) error) error {
	const tries = 5
	ctx, cancel := context.WithTimeout(ctx, verbTime)
	defer cancel()
	for n := 1; ; n++ {
		err := s.once(ctx, verb, fn)
		if err == nil || n == tries || !restart(err) || ctx.Err() != nil {
			var known *holdpoint.Error
			if err == nil || errors.As(err, &known) {
				return err
			}
			failed := unavailable(verb, err)
			s.health.note(err, failed)
			return failed
		}
		timer := time.NewTimer(time.Duration(n*n) * 5 * time.Millisecond)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
		}
	}
}

func (s *Store) once(ctx context.Context, verb string, fn func(t *tx) error) (err error) {
	raw, err := s.write.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("%s: begin: %w", verb, err)
	}
	defer func() { _ = raw.Rollback() }()
	if s.pooled {
		if _, err := raw.ExecContext(ctx, setSession); err != nil {
			return fmt.Errorf("%s: %w", verb, err)
		}
	}
	t := &tx{Tx: raw, s: s}
	if err := fn(t); err != nil {
		return err
	}
	killpoint.At(verb, "before_commit")
	if err := raw.Commit(); err != nil {
		return fmt.Errorf("%s: commit: %w", verb, err)
	}
	killpoint.At(verb, "committed")
	s.wrote(t.events)
	for _, kind := range t.news {
		select {
		case s.news <- kind:
		default: // there is news enough to wake everybody
		}
	}
	return nil
}

// restart reports whether the whole transaction may be run again, by numeric code, never by message.
func restart(err error) bool {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		switch pg.Code {
		case "40001", "40P01": // serialization failure, deadlock
			return true
		case "0A000", "26000": // a prepared statement that a migration or a pooler has made useless; the next one is prepared anew
			return true
		}
	}
	var lite *sqlite.Error
	if errors.As(err, &lite) {
		// SQLITE_LOCKED, and SQLITE_BUSY but for a writer that has been waited for through busy_timeout.
		return lite.Code()&0xff == 6 || lite.Code()&0xff == 5 && lite.Code() != 5
	}
	return false
}

// unique reports whether err is a violated unique constraint.
func unique(err error) bool {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return pg.Code == "23505"
	}
	var lite *sqlite.Error
	return errors.As(err, &lite) && (lite.Code() == 2067 || lite.Code() == 1555) // SQLITE_CONSTRAINT_UNIQUE, _PRIMARYKEY
}

// Now implements store.Store.
func (s *Store) Now(ctx context.Context) (time.Time, error) {
	var us int64
	if err := s.read.QueryRowContext(ctx, s.expand("SELECT {{now}}"), s.clock()).Scan(&us); err != nil {
		return time.Time{}, unavailable("now", err)
	}
	return instant(us), nil
}

// Ping implements store.Store.
func (s *Store) Ping(ctx context.Context) error {
	if err := s.write.PingContext(ctx); err != nil {
		return unavailable("ping", err)
	}
	return s.health.check()
}

// Wake implements store.Store.
func (s *Store) Wake() <-chan string { return s.wake }

// Close implements store.Store.
func (s *Store) Close() error {
	if s.stop != nil {
		s.stop()
	}
	if s.read != s.write {
		_ = s.read.Close()
	}
	return s.write.Close()
}

// listen turns notifications of other processes into wake-up hints; it reconnects for as long as the store is open.
func (s *Store) listen(ctx context.Context) {
	for ctx.Err() == nil {
		conn, err := pgx.Connect(ctx, s.direct)
		if err == nil {
			_, err = conn.Exec(ctx, "LISTEN holdpoint")
			for err == nil {
				var n *pgconn.Notification
				if n, err = conn.WaitForNotification(ctx); err == nil {
					s.hint(n.Payload)
				}
			}
			_ = conn.Close(context.WithoutCancel(ctx))
		}
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
		}
	}
}

// hint wakes a loop of this process; a full channel means that it is awake anyway.
func (s *Store) hint(kind string) {
	select {
	case s.wake <- kind:
	default:
	}
}

// notify has other processes told after the commit that work of a kind is there. SQLite has one process.
func (t *tx) notify(kind string) {
	if t.s.postgres {
		t.news = append(t.news, kind)
	}
}

// newsEvery bounds how often other processes are told of one kind of work.
const newsEvery = 10 * time.Millisecond

// tell sends news to other processes until the store is closed: each kind once for all that was committed meanwhile. It has
// transactions of its own, because PostgreSQL lets transactions that notify commit one after the other only.
func (s *Store) tell(ctx context.Context) {
	for {
		waiting := map[string]bool{}
		select {
		case kind := <-s.news:
			waiting[kind] = true
		case <-ctx.Done():
			return
		}
		for more := true; more; {
			select {
			case kind := <-s.news:
				waiting[kind] = true
			default:
				more = false
			}
		}
		for kind := range waiting {
			// Not cancelled with the store: a query that is cancelled under way costs its connection, and old poolers their life.
			within, cancel := context.WithTimeout(context.WithoutCancel(ctx), lockWait)
			_, err := s.write.ExecContext(within, "SELECT pg_notify('holdpoint', $1)", kind)
			cancel()
			if err != nil && ctx.Err() == nil {
				s.log.WarnContext(ctx, "other processes not told of work; they find it at their next poll", "kind", kind, "error", err)
			}
		}
		select {
		case <-time.After(newsEvery):
		case <-ctx.Done():
			return
		}
	}
}

// instant turns microseconds into a UTC time.
func instant(us int64) time.Time { return time.UnixMicro(us).UTC() }

// instantPtr turns nullable microseconds into a time.
func instantPtr(us sql.NullInt64) *time.Time {
	if !us.Valid {
		return nil
	}
	t := instant(us.Int64)
	return &t
}

// micros turns a duration into microseconds.
func micros(d time.Duration) int64 { return d.Microseconds() }
