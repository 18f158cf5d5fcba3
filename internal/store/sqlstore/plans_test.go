package sqlstore

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/internal/dispatch"
	"github.com/holdpoint/holdpoint/internal/egress"
	"github.com/holdpoint/holdpoint/internal/engine"
	"github.com/holdpoint/holdpoint/internal/payload"
	"github.com/holdpoint/holdpoint/internal/testenv"
)

// past names the tables that get rows with every run, and says what differs from the run that is copied into them. n is
// the copy's number.
var past = []struct {
	table string
	own   map[string]string
}{
	{"runs", map[string]string{"id": pastID("a"), "key": pastID("key"), "key_hmac": pastID("hmac"), "record": pastID("record")}},
	{"drafts", map[string]string{"run_id": pastID("a")}},
	{"planned_effects", map[string]string{"run_id": pastID("a"), "id": pastID("d")}},
	{"approvals", map[string]string{"id": pastID("b"), "run_id": pastID("a")}},
	{"decisions", map[string]string{"id": pastID("c"), "approval_id": pastID("b"), "run_id": pastID("a")}},
	{"effects", map[string]string{"id": pastID("d"), "run_id": pastID("a"), "approval_id": pastID("b"), "target_index": pastID("target")}},
	{"attempts", map[string]string{"id": pastID("e"), "effect_id": pastID("d"), "run_id": pastID("a")}},
	{"messages", map[string]string{"id": pastID("f") + " || id", "run_id": pastID("a"), "approval_id": pastID("b"), "state": "'delivered'"}},
	{"events", map[string]string{"id": pastID("g") + " || run_seq", "run_id": pastID("a")}},
}

// pastID is older than every UUIDv7 of the test.
func pastID(kind string) string { return "'00-" + kind + "-' || (1000000 + n)" }

// pastRuns is enough for a planner to prefer an index wherever there is one that serves.
const pastRuns = 4000

// TestPlansOnPostgres holds that nothing of the governed path and of the searches beside it reads a growing table from end
// to end: the server counts such scans.
func TestPlansOnPostgres(t *testing.T) {
	dsn := testenv.Postgres(t)
	open := func() *Store {
		s, err := Open(t.Context(), Options{DSN: dsn})
		require.NoError(t, err)
		return s
	}
	s := open()
	require.NoError(t, s.Migrate(t.Context()))
	w := newPlanWorld(t, s)
	w.walk()
	w.fillPast()
	w.stop()
	require.NoError(t, s.Close())
	db, err := sql.Open("pgx", dsn)
	require.NoError(t, err)
	defer db.Close()
	before := scans(t, db)
	s = open()
	w.start(s)
	w.walk()
	w.stop()
	require.NoError(t, s.Close()) // a backend that ends has told its counters
	var told map[string]reads
	require.Eventually(t, func() bool {
		var backends int
		require.NoError(t, db.QueryRowContext(t.Context(), "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()").Scan(&backends))
		told = scans(t, db)
		return backends == 0
	}, time.Minute, 50*time.Millisecond)
	for _, p := range past {
		b, a := before[p.table], told[p.table]
		require.Equal(t, b.whole, a.whole, "%s was read from end to end %d times", p.table, a.whole-b.whole)
		require.Less(t, a.rows-b.rows, int64(pastRuns), "an index of %s was walked from end to end", p.table)
	}
	_, err = db.ExecContext(t.Context(), "SELECT count(*) FROM events")
	require.NoError(t, err)
	require.Eventually(t, func() bool { return scans(t, db)["events"].whole > told["events"].whole }, time.Minute, 100*time.Millisecond, "the server counts scans")
}

// reads counts how a table was read: whole, and rows by an index.
type reads struct{ whole, rows int64 }

func scans(t *testing.T, db *sql.DB) map[string]reads {
	t.Helper()
	rows, err := db.QueryContext(t.Context(), "SELECT relname, seq_scan, COALESCE(idx_tup_fetch, 0) FROM pg_stat_user_tables")
	require.NoError(t, err)
	defer rows.Close()
	all := map[string]reads{}
	for rows.Next() {
		var table string
		var n reads
		require.NoError(t, rows.Scan(&table, &n.whole, &n.rows))
		all[table] = n
	}
	require.NoError(t, rows.Err())
	return all
}

// TestPlansOnSQLite holds the same on SQLite, which explains every statement that the store made.
func TestPlansOnSQLite(t *testing.T) {
	path := filepath.Join(t.TempDir(), "hp.db")
	s, err := Open(t.Context(), Options{DSN: "sqlite:" + path})
	require.NoError(t, err)
	require.NoError(t, s.Migrate(t.Context()))
	heard := &listener{said: map[string][]driver.NamedValue{}}
	s.write, s.read = heard.between(s.write), heard.between(s.read)
	w := newPlanWorld(t, s)
	w.walk()
	w.fillPast()
	heard.clear()
	w.walk()
	w.stop()
	said := heard.all()
	require.Greater(t, len(said), 20, "the path makes statements")
	for statement, args := range said {
		plan, err := explain(t.Context(), s.write, statement, args)
		require.NoError(t, err, statement)
		for _, found := range growing.FindAllString(plan, -1) {
			all := strings.HasPrefix(found, "SCAN") || strings.HasSuffix(found, "(tenant=?)")
			if all && !openOnly.MatchString(found) && !strings.Contains(statement, newest) {
				t.Errorf("%s\n%s\n%s", found, statement, plan)
			}
		}
	}
	plan, err := explain(t.Context(), s.write, "SELECT count(*) FROM runs r WHERE r.fail_text IS NULL", nil)
	require.NoError(t, err)
	require.Regexp(t, "^SCAN r\\b", plan)
	require.NoError(t, s.Close())
}

// growing is how SQLite says that it reads a growing table, by the table's name or by what our statements call it. It reads
// all of it, or all of a tenant, where the line begins with SCAN or ends with (tenant=?).
var growing = regexp.MustCompile(`(?m)(SCAN|SEARCH) (runs|r|drafts|planned_effects|approvals|a|decisions|effects|e|p|attempts|messages|events)\b.*$`)

// openOnly is a walk along an index that holds nothing which has ended, and so does not grow.
var openOnly = regexp.MustCompile(`USING INDEX (runs_retrying|attempts_open)$`)

// newest ends the one search that asks for a whole tenant, page by page along its primary key.
const newest = "WHERE runs.tenant = $1 ORDER BY runs.id DESC LIMIT $2"

func explain(ctx context.Context, db *sql.DB, statement string, args []driver.NamedValue) (string, error) {
	values := make([]any, len(args))
	for i, a := range args {
		values[i] = a.Value
	}
	rows, err := db.QueryContext(ctx, "EXPLAIN QUERY PLAN "+statement, values...)
	steps, err := collect(rows, err, func(row scanner) (string, error) {
		var id, parent, unused int
		var detail string
		return detail, row.Scan(&id, &parent, &unused, &detail)
	})
	return strings.Join(steps, "\n"), err
}

// planWorld is the path from claim to settlement over one store.
type planWorld struct {
	*testing.T
	s            *Store
	e            *engine.Engine
	d            *dispatch.Dispatcher
	policy       string
	key          string
	ana, machine holdpoint.Actor
	token        string
	n            int
}

const planPolicy = `version: 1
redelivery_window: 30d
roles:
  lead: {users: [ana@acme.example]}
  switch-owner: {users: [ana@acme.example]}
  policy-owner: {users: [ana@acme.example]}
  auditor: {users: [ana@acme.example]}
  tenant-admin: {users: [ana@acme.example]}
channels:
  desk: {kind: webhook, url: "PROVIDER/desk", secret: "${env:DESK_SECRET}"}
connectors:
  crm: {kind: http, url: "PROVIDER/notes", body: {text: "${effect.payload.text}"}, success: [200]}
workflows:
  order:
    contract: c.json
    effects: {note: {type: crm.note, connector: crm, consequence: crm_change, target: "${event.id}", payload: {text: "${draft.text}"}}}
    gate: {pattern: approve_before_act, roles: [lead], approve_by: 24h, execute_by: 24h, notify: [desk]}
`

// secrets knows one: any.
type secrets struct{}

func (secrets) Env(string) (string, bool) {
	return "whsec_c2VjcmV0IHNlY3JldCBzZWNyZXQgc2VjcmV0IHNlYw==", true
}

func (secrets) File(string) ([]byte, error) { return nil, errors.New("no secret stands in a file") }

func newPlanWorld(t *testing.T, s *Store) *planWorld {
	t.Helper()
	provider := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("{}")) }))
	t.Cleanup(provider.Close)
	w := &planWorld{T: t, policy: strings.ReplaceAll(planPolicy, "PROVIDER", provider.URL)}
	w.start(s)
	ctx, local := t.Context(), engine.Local("default", "test")
	require.NoError(t, w.e.CreateTenant(ctx, local, "default"))
	_, err := w.e.AddPerson(ctx, local, "ana@acme.example", "correct horse battery")
	require.NoError(t, err)
	p, err := w.e.PutPolicy(ctx, local, engine.PolicyProposal{Document: w.policy, Files: map[string]string{"c.json": `{"type":"object"}`}})
	require.NoError(t, err)
	require.NoError(t, w.e.ActivatePolicy(ctx, local, p.Hash, ""))
	key, err := w.e.CreateKey(ctx, local, "bench", []holdpoint.Scope{holdpoint.ScopeWork, holdpoint.ScopeRead})
	require.NoError(t, err)
	w.key = key.Key
	w.token, _, err = w.e.Login(ctx, "default", "ana@acme.example", "correct horse battery", "127.0.0.1")
	require.NoError(t, err)
	w.ana, _, err = w.e.Session(ctx, w.token)
	require.NoError(t, err)
	on := true
	for _, scope := range []string{"global", "tenant"} {
		_, err := w.e.SetSwitch(ctx, w.ana, scope, engine.SwitchRequest{On: &on, Reason: "start"})
		require.NoError(t, err)
	}
	return w
}

// start makes an engine and the loops over a store; stop ends the loops.
func (w *planWorld) start(s *Store) {
	w.Helper()
	master, err := payload.NewMaster([]byte(strings.Repeat("k", 32)))
	require.NoError(w, err)
	w.s = s
	w.e, err = engine.New(engine.Options{Store: s, Master: master, PublicURL: "http://127.0.0.1:8470", ActionsEnabled: true})
	require.NoError(w, err)
	w.d = dispatch.New(dispatch.Options{Engine: w.e, Guard: &egress.Guard{Allow: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}}, Secrets: secrets{}, Wake: s.Wake(), Poll: 50 * time.Millisecond})
	w.d.Start()
}

func (w *planWorld) stop() {
	w.Helper()
	require.NoError(w, w.d.Stop(context.Background()))
}

// walk brings a few runs from claim to settlement, then asks what people ask.
func (w *planWorld) walk() {
	w.Helper()
	ctx := w.Context()
	for range 3 {
		var err error
		w.machine, err = w.e.Bearer(ctx, w.key)
		require.NoError(w, err)
		w.ana, _, err = w.e.Session(ctx, w.token)
		require.NoError(w, err)
		w.n++
		key := fmt.Sprint("order-", w.n)
		claim := engine.ClaimRequest{Workflow: "order", Key: key, Payload: json.RawMessage(fmt.Sprintf(`{"id":%q}`, key))}
		c, err := w.e.Claim(ctx, w.machine, claim)
		require.NoError(w, err)
		again, err := w.e.Claim(ctx, w.machine, claim)
		require.NoError(w, err)
		require.Equal(w, holdpoint.Busy, again.Outcome)
		work := engine.Work{Owner: c.Lease.Owner, Version: c.Lease.Version}
		_, err = w.e.Renew(ctx, w.machine, c.Run.ID, engine.RenewRequest{Work: work})
		require.NoError(w, err)
		d, err := w.e.SubmitDraft(ctx, w.machine, c.Run.ID, engine.DraftRequest{Work: work, Output: json.RawMessage(`{"text":"hello"}`),
			Model: holdpoint.Model{EndpointClass: "local", Name: "any", Revision: "1", FinishReason: "stop", PromptVersion: "3"}})
		require.NoError(w, err)
		require.NotNil(w, d.Approval)
		page, err := w.e.Approvals(ctx, w.ana, holdpoint.ApprovalPending, "", 0)
		require.NoError(w, err)
		require.Len(w, page.Approvals, 1)
		_, err = w.e.Approval(ctx, w.ana, d.Approval.ID, "en")
		require.NoError(w, err)
		_, err = w.e.Decide(ctx, w.ana, d.Approval.ID, engine.DecisionRequest{Decision: holdpoint.DecisionApprove, Digest: d.Approval.Digest})
		require.NoError(w, err)
		require.Eventually(w, func() bool {
			v, err := w.e.Run(ctx, w.ana, c.Run.ID)
			require.NoError(w, err)
			return v.State == holdpoint.RunCompleted
		}, time.Minute, 20*time.Millisecond)
		_, err = w.e.Evidence(ctx, w.ana, c.Run.ID)
		require.NoError(w, err)
		for _, q := range []engine.RunQuery{{Key: key}, {Workflow: "order"}, {State: holdpoint.RunAwaitingHuman}, {State: holdpoint.RunCompleted}, {Record: "R-1"}, {}} {
			_, err := w.e.Runs(ctx, w.ana, q)
			require.NoError(w, err)
		}
		_, err = w.e.Effects(ctx, w.ana, engine.EffectQuery{State: holdpoint.EffectUnknown})
		require.NoError(w, err)
		_, err = w.e.Sweep(ctx, 10)
		require.NoError(w, err)
	}
}

// fillPast copies a finished run many times and lets the database look at what it has.
func (w *planWorld) fillPast() {
	w.Helper()
	ctx := w.Context()
	var run string
	require.NoError(w, w.s.write.QueryRowContext(ctx, "SELECT id FROM runs WHERE state = 'completed' ORDER BY id LIMIT 1").Scan(&run))
	for _, p := range past {
		rows, err := w.s.write.QueryContext(ctx, "SELECT * FROM "+p.table+" LIMIT 0")
		require.NoError(w, err)
		columns, err := rows.Columns()
		require.NoError(w, err)
		require.NoError(w, errors.Join(rows.Err(), rows.Close()))
		from := slices.Clone(columns)
		for i, c := range columns {
			if own, ok := p.own[c]; ok {
				from[i] = own
			}
		}
		key := "run_id"
		if p.table == "runs" {
			key = "id"
		}
		result, err := w.s.write.ExecContext(ctx, fmt.Sprintf("WITH RECURSIVE copies(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM copies WHERE n < %d)"+
			" INSERT INTO %s (%s) SELECT %s FROM copies CROSS JOIN %s WHERE %s = $1",
			pastRuns, p.table, strings.Join(columns, ", "), strings.Join(from, ", "), p.table, key), run)
		require.NoError(w, err, p.table)
		made, err := result.RowsAffected()
		require.NoError(w, err)
		require.GreaterOrEqual(w, made, int64(pastRuns), "the finished run has rows in %s", p.table)
	}
	_, err := w.s.write.ExecContext(ctx, "ANALYZE")
	require.NoError(w, err)
}

// listener hears every statement on its way to the database.
type listener struct {
	mu   sync.Mutex
	said map[string][]driver.NamedValue
}

func (l *listener) hear(statement string, args []driver.NamedValue) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.said[statement] = args
}

func (l *listener) clear() {
	l.mu.Lock()
	defer l.mu.Unlock()
	clear(l.said)
}

// all gives what was said of rows: no settings, no beginnings and ends.
func (l *listener) all() map[string][]driver.NamedValue {
	l.mu.Lock()
	defer l.mu.Unlock()
	rows := map[string][]driver.NamedValue{}
	for statement, args := range l.said {
		if word, _, _ := strings.Cut(strings.TrimSpace(statement), " "); slices.Contains([]string{"SELECT", "INSERT", "UPDATE", "DELETE", "WITH"}, strings.ToUpper(word)) {
			rows[statement] = args
		}
	}
	return rows
}

// between gives a pool whose connections are those of db.
func (l *listener) between(db *sql.DB) *sql.DB {
	heard := sql.OpenDB(heardConnector{l, db})
	heard.SetMaxOpenConns(db.Stats().MaxOpenConnections)
	return heard
}

type heardConnector struct {
	l  *listener
	db *sql.DB
}

func (c heardConnector) Driver() driver.Driver { return c.db.Driver() }

func (c heardConnector) Close() error { return c.db.Close() }

func (c heardConnector) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := c.db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	return &heardConn{c.l, conn}, nil
}

// heardConn passes everything on to one connection of the pool behind it.
type heardConn struct {
	l    *listener
	conn *sql.Conn
}

// raw calls fn with the driver's own connection.
func (c *heardConn) raw(fn func(driver.Conn) error) error {
	return c.conn.Raw(func(x any) error { return fn(x.(driver.Conn)) })
}

func (c *heardConn) Prepare(statement string) (s driver.Stmt, err error) {
	c.l.hear(statement, nil)
	err = c.raw(func(x driver.Conn) error { s, err = x.Prepare(statement); return err })
	return s, err
}

func (c *heardConn) Close() error { return c.conn.Close() }

func (c *heardConn) Begin() (driver.Tx, error) {
	return c.BeginTx(context.Background(), driver.TxOptions{})
}

func (c *heardConn) BeginTx(ctx context.Context, o driver.TxOptions) (t driver.Tx, err error) {
	err = c.raw(func(x driver.Conn) error { t, err = x.(driver.ConnBeginTx).BeginTx(ctx, o); return err })
	return t, err
}

func (c *heardConn) QueryContext(ctx context.Context, statement string, args []driver.NamedValue) (r driver.Rows, err error) {
	c.l.hear(statement, args)
	err = c.raw(func(x driver.Conn) error {
		r, err = x.(driver.QueryerContext).QueryContext(ctx, statement, args)
		return err
	})
	return r, err
}

func (c *heardConn) ExecContext(ctx context.Context, statement string, args []driver.NamedValue) (r driver.Result, err error) {
	c.l.hear(statement, args)
	err = c.raw(func(x driver.Conn) error {
		r, err = x.(driver.ExecerContext).ExecContext(ctx, statement, args)
		return err
	})
	return r, err
}
