package sqlstore

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/internal/store"
)

// look runs fn in one transaction that only reads, so that all it reads is of one moment: PostgreSQL keeps one snapshot
// from its first statement on, and so does SQLite's log.
func (s *Store) look(ctx context.Context, verb string, fn func(t *tx) error) error {
	var opts *sql.TxOptions
	if s.postgres {
		opts = &sql.TxOptions{Isolation: sql.LevelRepeatableRead, ReadOnly: true}
	}
	ctx, cancel := context.WithTimeout(ctx, verbTime)
	defer cancel()
	raw, err := s.read.BeginTx(ctx, opts)
	if err != nil {
		return unavailable(verb, err)
	}
	defer func() { _ = raw.Rollback() }() // nothing was written
	return readErr(verb, fn(&tx{Tx: raw, s: s}), nil)
}

// readErr turns the end of a read into what the caller may see: missing for no row, unavailable for what the database
// says, and typed errors as they are.
func readErr(verb string, err, missing error) error {
	var known *holdpoint.Error
	switch {
	case err == nil:
		return nil
	case missing != nil && errors.Is(err, sql.ErrNoRows):
		return missing
	case errors.As(err, &known):
		return err
	}
	return unavailable(verb, err)
}

// filter collects the conditions of a search; args holds what stands before them.
type filter struct {
	conditions []string
	args       []any
}

// equal adds a condition unless value is empty.
func (f *filter) equal(column, value string) {
	if value != "" {
		f.compare(column, "=", value)
	}
}

func (f *filter) compare(column, operator, value string) {
	f.args = append(f.args, value)
	f.conditions = append(f.conditions, fmt.Sprintf("%s %s $%d", column, operator, len(f.args)))
}

// page ends a search: conditions, then one page of size rows after cursor, newest first. Ids are UUIDv7, so their order
// is that of time. One row more than the page tells whether there is a next one.
func (f *filter) page(table, cursor string, size int) string {
	if cursor != "" {
		f.compare(table+".id", "<", cursor)
	}
	f.args = append(f.args, size+1)
	return fmt.Sprintf(" WHERE %s ORDER BY %s.id DESC LIMIT $%d", strings.Join(f.conditions, " AND "), table, len(f.args))
}

// pageSize bounds a page: 50 rows unless said otherwise, never more than 500.
func pageSize(limit int) int {
	if limit <= 0 {
		return 50
	}
	return min(limit, 500)
}

// cut gives the page and the cursor of the next one, "" if there is none.
func cut[T any](rows []T, size int, id func(T) string) ([]T, string) {
	if len(rows) <= size {
		return rows, ""
	}
	return rows[:size], id(rows[size-1])
}

// FindRuns implements store.Reads. The tenant always counts: "" finds nothing.
func (s *Store) FindRuns(ctx context.Context, f store.RunFilter) ([]holdpoint.Run, string, error) {
	size := pageSize(f.Limit)
	var w filter
	w.compare("runs.tenant", "=", f.Tenant)
	w.equal("runs.key_hmac", f.KeyHMAC)
	w.equal("runs.key", f.Key)
	w.equal("runs.workflow", f.Workflow)
	w.equal("runs.record", f.Record)
	w.equal("runs.state", string(f.State))
	rows, err := s.read.QueryContext(ctx, "SELECT "+runColumns+" FROM runs"+w.page("runs", f.Cursor, size), w.args...)
	runs, err := collect(rows, err, func(row scanner) (holdpoint.Run, error) { return scanRun(row) })
	runs, next := cut(runs, size, func(r holdpoint.Run) string { return r.ID })
	return runs, next, readErr("find runs", err, nil)
}

// ApprovalByID implements store.Reads; not_found.
func (s *Store) ApprovalByID(ctx context.Context, tenant, id string) (holdpoint.Approval, error) {
	return s.questions.do(ctx, runRef{tenant, id})
}

func (s *Store) approvalsByID(ctx context.Context, asked []runRef, found map[runRef]holdpoint.Approval) error {
	return s.each(ids, named(asked), nil, func(with string, args []any) error {
		rows, err := s.read.QueryContext(ctx, with+" SELECT "+approvalColumns+" FROM v JOIN approvals ON approvals.tenant = v.tenant AND approvals.id = v.id", args...)
		_, err = collect(rows, err, func(row scanner) (holdpoint.Approval, error) {
			a, err := scanApproval(row)
			found[runRef{a.Tenant, a.ID}] = a
			return a, err
		})
		return err
	})
}

// Content implements store.Reads; not_found.
func (s *Store) Content(ctx context.Context, tenant, runID string) (store.Record, error) {
	return s.contents.do(ctx, runRef{tenant, runID})
}

// contentColumns are runColumns with what is sealed in the run's row.
const contentColumns = runColumns + ", runs.run_key, runs.payload, runs.initiator, runs.resume_url, runs.result, runs.fail_text"

func scanContent(row scanner) (r store.Record, err error) {
	r.Run, err = scanRun(row, &r.RunKey, &r.Payload, &r.Initiator, &r.ResumeURL, &r.Result, &r.FailText)
	return r, err
}

func (s *Store) contentsOf(ctx context.Context, asked []runRef, found map[runRef]store.Record) error {
	return s.each(ids, named(asked), nil, func(with string, args []any) error {
		rows, err := s.read.QueryContext(ctx, with+" SELECT "+contentColumns+" FROM v JOIN runs ON runs.tenant = v.tenant AND runs.id = v.id", args...)
		_, err = collect(rows, err, func(row scanner) (store.Record, error) {
			r, err := scanContent(row)
			found[runRef{r.Run.Tenant, r.Run.ID}] = r
			return r, err
		})
		return err
	})
}

// named are the rows of a batch that names them.
func named(refs []runRef) [][]any {
	rows := make([][]any, len(refs))
	for i, r := range refs {
		rows[i] = []any{r.tenant, r.id}
	}
	return rows
}

// FindApprovals implements store.Reads, newest first; state "" gives all.
func (s *Store) FindApprovals(ctx context.Context, tenant string, state holdpoint.ApprovalState, cursor string, limit int) ([]holdpoint.Approval, string, error) {
	size := pageSize(limit)
	var w filter
	w.compare("approvals.tenant", "=", tenant)
	w.equal("approvals.state", string(state))
	rows, err := s.read.QueryContext(ctx, "SELECT "+approvalColumns+" FROM approvals"+w.page("approvals", cursor, size), w.args...)
	approvals, err := collect(rows, err, func(row scanner) (holdpoint.Approval, error) { return scanApproval(row) })
	approvals, next := cut(approvals, size, func(a holdpoint.Approval) string { return a.ID })
	return approvals, next, readErr("find approvals", err, nil)
}

// standingHold is what keeps an effect from being sent now: its own hold, else the switch, else the hold of its
// connector. The last two are written nowhere on the effect, because they can end without it. A missing switch global
// or tenant is off, a missing narrower one says nothing (R4.8).
const standingHold = `CASE
 WHEN effects.state <> 'pending' OR effects.hold <> '' THEN effects.hold
 WHEN NOT EXISTS (SELECT 1 FROM switches WHERE switches.tenant = '' AND switches.scope = 'global' AND switches.is_on = 1)
  OR NOT EXISTS (SELECT 1 FROM switches WHERE switches.tenant = effects.tenant AND switches.scope = 'tenant' AND switches.is_on = 1)
  OR EXISTS (SELECT 1 FROM switches WHERE switches.tenant = effects.tenant AND switches.is_on = 0
   AND switches.scope IN ('workflow:' || effects.workflow, 'connector:' || effects.connector, 'type:' || effects.type))
 THEN 'switch'
 ELSE COALESCE((SELECT connector_holds.hold FROM connector_holds WHERE connector_holds.tenant = effects.tenant
   AND connector_holds.connector = effects.connector AND connector_holds.type IN ('', effects.type)
   AND (connector_holds.until IS NULL OR connector_holds.until > {{now}}) ORDER BY connector_holds.type LIMIT 1), '')
 END`

// scanShown reads effectColumns and standingHold, then whatever more the statement returns.
func scanShown(row scanner, more ...any) (holdpoint.Effect, error) {
	var hold holdpoint.Hold
	e, err := scanEffect(row, append([]any{&hold}, more...)...)
	e.Hold = hold
	return e, err
}

// EffectByID implements store.Reads; not_found. Its hold is the one that stands now, switches and connectors included.
func (s *Store) EffectByID(ctx context.Context, tenant, id string) (holdpoint.Effect, []holdpoint.Attempt, error) {
	var e holdpoint.Effect
	var attempts []holdpoint.Attempt
	err := s.look(ctx, "effect by id", func(t *tx) error {
		var err error
		e, err = scanShown(t.QueryRowContext(ctx, s.expand("SELECT "+effectColumns+", "+standingHold+" FROM effects WHERE tenant = $2 AND id = $3"), s.clock(), tenant, id))
		if err != nil {
			return readErr("effect by id", err, holdpoint.Errorf(holdpoint.CodeNotFound, "there is no effect %s in this tenant; look at its run", id))
		}
		rows, err := t.QueryContext(ctx, "SELECT "+attemptColumns+" FROM attempts WHERE tenant = $1 AND effect_id = $2 ORDER BY number", tenant, id)
		attempts, err = collect(rows, err, func(row scanner) (holdpoint.Attempt, error) { return scanAttempt(row) })
		return err
	})
	return e, attempts, err
}

// FindEffects implements store.Reads, newest first. Held selects what waits for anything but time and its turn:
// pending effects with a hold, a switch that is off or a connector that is stopped. The tenant always counts.
func (s *Store) FindEffects(ctx context.Context, f store.EffectFilter) ([]holdpoint.Effect, string, error) {
	size := pageSize(f.Limit)
	w := filter{args: []any{s.clock()}}
	w.compare("effects.tenant", "=", f.Tenant)
	w.equal("effects.run_id", f.RunID)
	w.equal("effects.state", string(f.State))
	if f.Held {
		w.conditions = append(w.conditions, "effects.state = 'pending'", "("+standingHold+") <> ''")
	}
	q := "SELECT " + effectColumns + ", " + standingHold + " FROM effects" + w.page("effects", f.Cursor, size)
	rows, err := s.read.QueryContext(ctx, s.expand(q), w.args...)
	effects, err := collect(rows, err, func(row scanner) (holdpoint.Effect, error) { return scanShown(row) })
	effects, next := cut(effects, size, func(e holdpoint.Effect) string { return e.ID })
	return effects, next, readErr("find effects", err, nil)
}

// Events implements store.Reads: the events of one run in order, or the tenant's own if runID is "".
func (s *Store) Events(ctx context.Context, tenant, runID string) ([]holdpoint.Event, error) {
	rows, err := s.read.QueryContext(ctx, `SELECT id, run_seq, type, at, actor_kind, actor_id, actor_how, data FROM events
 WHERE tenant = $1 AND run_id = $2 ORDER BY run_seq`, tenant, runID)
	events, err := collect(rows, err, func(row scanner) (holdpoint.Event, error) {
		e := holdpoint.Event{Tenant: tenant, RunID: runID}
		var at int64
		var data string
		if err := row.Scan(&e.ID, &e.Seq, &e.Type, &at, &e.Who.Kind, &e.Who.ID, &e.Who.How, &data); err != nil {
			return e, err
		}
		e.At = instant(at)
		if err := json.Unmarshal([]byte(data), &e.Data); err != nil {
			return e, fmt.Errorf("event %s: data: %w", e.ID, err)
		}
		return e, nil
	})
	return events, readErr("events", err, nil)
}

// AddEvents implements store.Reads. Id, time and sequence number are given here; not_found if a run is missing, and
// then none is written.
func (s *Store) AddEvents(ctx context.Context, e []holdpoint.Event) error {
	// record locks in the order of the events: runs by id, then the tenant.
	sorted := slices.Clone(e)
	slices.SortStableFunc(sorted, func(a, b holdpoint.Event) int {
		if (a.RunID == "") != (b.RunID == "") {
			return strings.Compare(b.RunID, a.RunID)
		}
		return strings.Compare(a.Tenant+"\x00"+a.RunID, b.Tenant+"\x00"+b.RunID)
	})
	events := make([]event, len(sorted))
	for i, e := range sorted {
		events[i] = event{tenant: e.Tenant, run: e.RunID, kind: e.Type, who: e.Who, data: e.Data}
	}
	return s.do(ctx, "add events", func(t *tx) error {
		now, err := t.now(ctx)
		if err != nil {
			return err
		}
		return readErr("add events", t.record(ctx, now, events...), holdpoint.Errorf(holdpoint.CodeNotFound, "an event names a run or tenant that is not there; look the run up first"))
	})
}

// FirstForTarget implements store.Reads.
func (s *Store) FirstForTarget(ctx context.Context, tenant, typ, targetIndex, exceptRun string) (bool, error) {
	var first bool
	err := s.read.QueryRowContext(ctx, `SELECT NOT EXISTS (SELECT 1 FROM effects WHERE tenant = $1 AND type = $2 AND target_index = $3
 AND run_id <> $4 AND state = 'completed')`, tenant, typ, targetIndex, exceptRun).Scan(&first)
	return first, readErr("first for target", err, nil)
}

// Gauges implements store.Reads, over all tenants. Every effect state is a member, and ages are 0 where nothing waits.
func (s *Store) Gauges(ctx context.Context) (store.Gauges, error) {
	g := store.Gauges{Effects: map[holdpoint.EffectState]int64{holdpoint.EffectPending: 0, holdpoint.EffectSending: 0,
		holdpoint.EffectCompleted: 0, holdpoint.EffectUnknown: 0, holdpoint.EffectFailed: 0}}
	err := s.look(ctx, "gauges", func(t *tx) error {
		now, err := t.now(ctx)
		if err != nil {
			return err
		}
		type count struct {
			state             holdpoint.EffectState
			n                 int64
			released, doubted time.Time
		}
		rows, err := t.QueryContext(ctx, "SELECT state, COUNT(*), MIN(created_at), MIN(COALESCE(unknown_since, updated_at)) FROM effects GROUP BY state")
		counts, err := collect(rows, err, func(row scanner) (count, error) {
			var c count
			var released, doubted int64
			err := row.Scan(&c.state, &c.n, &released, &doubted)
			c.released, c.doubted = instant(released), instant(doubted)
			return c, err
		})
		if err != nil {
			return err
		}
		for _, c := range counts {
			g.Effects[c.state] = c.n
			switch c.state {
			case holdpoint.EffectPending:
				g.OldestPending = max(0, now.Sub(c.released))
			case holdpoint.EffectUnknown:
				g.OldestUnknown = max(0, now.Sub(c.doubted))
			}
		}
		rows, err = t.QueryContext(ctx, "SELECT tenant, scope, is_on, changed_by, changed_at FROM switches ORDER BY tenant, scope")
		g.Switches, err = collect(rows, err, func(row scanner) (holdpoint.Switch, error) {
			var w holdpoint.Switch
			var on, changed int64
			err := row.Scan(&w.Tenant, &w.Scope, &on, &w.ChangedBy, &changed)
			w.On, w.ChangedAt = on == 1, instant(changed)
			return w, err
		})
		if err != nil {
			return err
		}
		rows, err = t.QueryContext(ctx, `SELECT tenant, connector, type, hold, detail, until, since FROM connector_holds
 WHERE until IS NULL OR until > $1 ORDER BY tenant, connector, type`, now.UnixMicro())
		g.Holds, err = collect(rows, err, func(row scanner) (store.ConnectorHold, error) {
			var h store.ConnectorHold
			var until sql.NullInt64
			var since int64
			err := row.Scan(&h.Tenant, &h.Connector, &h.Type, &h.Hold, &h.Detail, &until, &since)
			h.Since = instant(since)
			if until.Valid {
				h.Until = instant(until.Int64)
			}
			return h, err
		})
		if err != nil {
			return err
		}
		return t.QueryRowContext(ctx, "SELECT COUNT(*) FROM approvals WHERE state = 'pending'").Scan(&g.Approvals)
	})
	return g, err
}
