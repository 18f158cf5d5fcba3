package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/internal/store"
	"github.com/holdpoint/holdpoint/internal/store/sqlstore"
)

// What both stores hold before one gets a past: what is approved, what waits for a person, and runs with a record.
const (
	sizePending = 200
	sizeRecords = 20
	sizeCalls   = 60 // of each operation and round
	leaseAtOnce = 4
)

// sizeTarget is what a past may cost.
const sizeTarget = 1.2

// operation is one call of the store whose time a past must not change.
type operation struct {
	name string
	call func(ctx context.Context, s store.Store, n int) error
}

// operations are those of the hot path, and the searches that people do beside them.
var operations = []operation{
	{"claim", func(ctx context.Context, s store.Store, n int) error {
		key := uuid.NewString()
		r, err := s.ClaimRuns(ctx, []store.Claim{{RunID: uuid.Must(uuid.NewV7()).String(), Tenant: "default", Scope: "order", Workflow: "order", Key: key,
			KeyHMAC: strings.Repeat(strings.ReplaceAll(key, "-", ""), 2), Fingerprint: strings.Repeat("f", 64), FingerprintRule: "1", Owner: uuid.NewString(),
			Lease: 5 * time.Minute, Cap: time.Hour, AttemptLimit: 3, Budget: time.Hour, StealCap: 3, PolicyHash: strings.Repeat("a", 64),
			Payload: make([]byte, 200), RunKey: make([]byte, 60)}})
		if err == nil && r[0].Outcome != holdpoint.Claimed {
			err = fmt.Errorf("the claim answered %s", r[0].Outcome)
		}
		return err
	}},
	{"lease", func(ctx context.Context, s store.Store, n int) error {
		leased, err := s.LeaseEffects(ctx, store.EffectLease{Owner: "bench", For: time.Hour, Limit: leaseAtOnce, Enabled: true})
		return wanted(err, len(leased), leaseAtOnce)
	}},
	{"inbox", func(ctx context.Context, s store.Store, n int) error {
		page, _, err := s.FindApprovals(ctx, "default", holdpoint.ApprovalPending, "", 50)
		return wanted(err, len(page), 50)
	}},
	{"runs by key", search(1, func(n int) store.RunFilter { return store.RunFilter{Key: string(appendName(nil, 1, int64(n)))} })},
	{"runs by workflow", search(50, func(int) store.RunFilter { return store.RunFilter{Workflow: "order"} })},
	{"runs by state", search(50, func(int) store.RunFilter { return store.RunFilter{State: holdpoint.RunAwaitingHuman} })},
	{"runs by record", search(1, func(n int) store.RunFilter { return store.RunFilter{Record: fmt.Sprint("R-", n%sizeRecords)} })},
}

func search(want int, filter func(n int) store.RunFilter) func(context.Context, store.Store, int) error {
	return func(ctx context.Context, s store.Store, n int) error {
		f := filter(n)
		f.Tenant, f.Limit = "default", 50
		page, _, err := s.FindRuns(ctx, f)
		return wanted(err, len(page), want)
	}
}

func wanted(err error, got, want int) error {
	if err == nil && got != want {
		err = fmt.Errorf("%d rows instead of %d", got, want)
	}
	return err
}

// measureSize compares the store's calls over a store with a long past with those over one without.
func measureSize(ctx context.Context, b *bench, d database) (err error) {
	p, err := startProvider()
	if err != nil {
		return err
	}
	defer p.close()
	empty, err := b.present(ctx, d, p)
	if err != nil {
		return err
	}
	defer func() { err = firstError(err, d.drop(ctx, empty)) }()
	full, err := d.create(ctx, b, "past", empty)
	if err != nil {
		return err
	}
	defer func() { err = firstError(err, d.drop(ctx, full)) }()
	start := time.Now()
	if err := fillPast(ctx, d, full, b.Size); err != nil {
		return fmt.Errorf("fill: %w", err)
	}
	fmt.Printf("  %d finished runs made in %s\n", b.Size, time.Since(start).Round(time.Second))
	took := [2][][]float64{make([][]float64, len(operations)), make([][]float64, len(operations))}
	for side, address := range []string{empty, full} {
		db, err := d.open(address)
		if err != nil {
			return err
		}
		_, err = db.ExecContext(ctx, "ANALYZE")
		if err := firstError(err, db.Close()); err != nil {
			return err
		}
		if err := d.settle(ctx); err != nil {
			return err
		}
		if err := timed(ctx, address, took[side], 0); err != nil { // warm; not counted
			return err
		}
		clear(took[side])
	}
	for round := range b.Runs {
		for side, address := range []string{empty, full} {
			if err := timed(ctx, address, took[side], round+1); err != nil {
				return err
			}
		}
	}
	fmt.Printf("size, %s: one call over %d finished runs beside the same call without them (median of %d calls each)\n", d.kind(), b.Size, b.Runs*sizeCalls)
	for i, o := range operations {
		e, f := median(took[0][i]), median(took[1][i])
		fmt.Printf("  %-18s without %8.2f ms   with %8.2f ms   ratio %.2f   target ≤ %.1f\n", o.name, e, f, f/e, sizeTarget)
	}
	fmt.Println()
	return nil
}

// timed makes each call of a round and adds the milliseconds that it took.
func timed(ctx context.Context, address string, took [][]float64, round int) (err error) {
	s, err := sqlstore.Open(ctx, sqlstore.Options{DSN: address})
	if err != nil {
		return err
	}
	defer func() { err = firstError(err, s.Close()) }()
	for i, o := range operations {
		for n := range sizeCalls {
			start := time.Now()
			if err := o.call(ctx, s, n); err != nil {
				return fmt.Errorf("%s: %w", o.name, err)
			}
			took[i] = append(took[i], float64(time.Since(start).Microseconds())/1000)
		}
	}
	return nil
}

// present makes the store that both sides start from, with one finished run to copy.
func (b *bench) present(ctx context.Context, d database, p *provider) (address string, err error) {
	if address, err = d.create(ctx, b, "present", ""); err != nil {
		return "", err
	}
	i, err := b.newInstance(ctx, address, p.url())
	if err != nil {
		return "", err
	}
	if err := i.serve(ctx); err != nil {
		return "", err
	}
	defer func() { err = firstError(err, i.stop()) }()
	w, err := newWorker(i, 0)
	if err != nil {
		return "", err
	}
	defer w.close()
	db, err := d.open(address)
	if err != nil {
		return "", err
	}
	defer func() { err = firstError(err, db.Close()) }()
	err = errors.Join(i.turn(true), w.approved(0, 0), completed(ctx, db, 1), i.turn(false))
	if err != nil {
		return "", err
	}
	for n := range int64((b.Runs + 1) * sizeCalls * leaseAtOnce) {
		if err := w.approved(1, n); err != nil {
			return "", err
		}
	}
	for n := range int64(sizePending) {
		if _, _, err := w.held(2, n); err != nil {
			return "", err
		}
	}
	for n := range sizeRecords {
		body := fmt.Sprintf(`{"workflow":"order","operation":{"source":"crm","record":"R-%d","action":"note"},"payload":{"id":"%d"}}`, n, n)
		if _, err := w.wire.do(http.StatusCreated, w.machine, "/v1/claims", []byte(body)); err != nil {
			return "", err
		}
	}
	// The store's own calls lease what the server must not send any more.
	_, err = db.ExecContext(ctx, "UPDATE switches SET is_on = 1")
	return address, errors.Join(err, nil)
}

// past says, for each table of a run, what differs from the run that is copied; n is the number of the copy. Ids are older
// than those of the present, as UUIDv7 has it, and in the order of their making.
var past = []struct {
	table string
	own   map[string]string
}{
	{"runs", map[string]string{"id": pastID(0), "key": "'past-' || n", "key_hmac": "md5(n || 'a') || md5(n || 'b')", "record": "'past-' || n"}},
	{"drafts", map[string]string{"run_id": pastID(0)}},
	{"approvals", map[string]string{"id": pastID(1), "run_id": pastID(0), "digest": "md5(n || 'c') || md5(n || 'd')"}},
	{"decisions", map[string]string{"id": pastID(2), "approval_id": pastID(1), "run_id": pastID(0)}},
	{"effects", map[string]string{"id": pastID(3), "run_id": pastID(0), "approval_id": pastID(1), "target_index": "md5(n || 'e') || md5(n || 'f')"}},
	{"attempts", map[string]string{"id": pastID(4), "effect_id": pastID(3), "run_id": pastID(0)}},
	{"events", map[string]string{"id": pastID(5) + " || run_seq", "run_id": pastID(0)}},
}

func pastID(kind int) string {
	return fmt.Sprintf("'01900000-000%d-7000-8000-' || lpad(to_hex(n), 12, '0')", kind)
}

// fillPast copies the one finished run into many. Secondary indexes are made again afterwards, which takes a fraction of
// the time; foreign keys hold by construction.
func fillPast(ctx context.Context, d database, address string, size int) (err error) {
	db, err := d.open(address)
	if err != nil {
		return err
	}
	defer func() { err = firstError(err, db.Close()) }()
	db.SetMaxOpenConns(1)
	var run string
	if err := db.QueryRowContext(ctx, "SELECT id FROM runs WHERE state = 'completed'").Scan(&run); err != nil {
		return err
	}
	for _, set := range []string{"session_replication_role = replica", "synchronous_commit = off", "maintenance_work_mem = '1GB'"} {
		if _, err := db.ExecContext(ctx, "SET "+set); err != nil {
			return err
		}
	}
	for _, p := range past {
		indexes, err := texts(ctx, db, `SELECT indexdef FROM pg_indexes WHERE tablename = $1 AND indexname NOT IN (SELECT conname FROM pg_constraint)`, p.table)
		if err != nil {
			return err
		}
		names, err := texts(ctx, db, `SELECT indexname FROM pg_indexes WHERE tablename = $1 AND indexname NOT IN (SELECT conname FROM pg_constraint)`, p.table)
		if err != nil {
			return err
		}
		columns, err := texts(ctx, db, `SELECT column_name FROM information_schema.columns WHERE table_name = $1 ORDER BY ordinal_position`, p.table)
		if err != nil {
			return err
		}
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
		statements := []string{fmt.Sprintf("INSERT INTO %s (%s) SELECT %s FROM %s, generate_series(1, %d) AS n WHERE %s = '%s'",
			p.table, strings.Join(columns, ", "), strings.Join(from, ", "), p.table, size, key, run)}
		if p.table == "events" { // one for each run: the last
			statements[0] += " AND type = 'run.completed'"
		}
		if len(names) > 0 {
			statements = append([]string{"DROP INDEX " + strings.Join(names, ", ")}, append(statements, indexes...)...)
		}
		for _, s := range statements {
			if _, err := db.ExecContext(ctx, s); err != nil {
				return fmt.Errorf("%s: %w", s, err)
			}
		}
		var made int
		if err := db.QueryRowContext(ctx, "SELECT count(*) FROM "+p.table).Scan(&made); err != nil || made < size {
			return fmt.Errorf("%s has %d rows: %w", p.table, made, err)
		}
	}
	_, err = db.ExecContext(ctx, "VACUUM")
	return err
}

func texts(ctx context.Context, db *sql.DB, query string, args ...any) (all []string, err error) {
	rows, err := db.QueryContext(ctx, query, args...)
	if err != nil {
		return nil, err
	}
	defer func() { err = firstError(err, rows.Close()) }()
	for rows.Next() {
		var s string
		if err := rows.Scan(&s); err != nil {
			return nil, err
		}
		all = append(all, s)
	}
	return all, rows.Err()
}
