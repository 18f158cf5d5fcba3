package sqlstore

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/internal/store"
)

// event is one line of evidence on its way into the transaction that it records.
type event struct {
	tenant, run string // run "" is an event of the tenant
	kind        string
	who         holdpoint.Who
	data        map[string]any
	content     []byte // sealed free text, nil if none
}

// perInsert bounds the rows of one INSERT: a statement takes a limited number of parameters, and SQLite searches a long
// list of them slowly.
const perInsert = 100

// record writes events in the order given. It first moves each run's counter, which also locks the row, so that
// sequence numbers have no gaps and follow the order of commits. Callers that write events of several runs hold their
// rows already.
func (t *tx) record(ctx context.Context, now time.Time, events ...event) error {
	if len(events) == 0 {
		return nil
	}
	counts := map[place]int64{}
	var order []place
	for _, e := range events {
		p := place{e.tenant, e.run}
		if counts[p] == 0 {
			order = append(order, p)
		}
		counts[p]++
	}
	next := map[place]int64{}
	for part := range slices.Chunk(order, perInsert) {
		if err := t.reserve(ctx, part, counts, next); err != nil {
			return fmt.Errorf("record: %w", err)
		}
	}
	for part := range slices.Chunk(events, perInsert) {
		args := make([]any, 0, 11*len(part))
		for _, e := range part {
			p := place{e.tenant, e.run}
			next[p]++
			data := []byte("{}")
			if len(e.data) > 0 {
				var err error
				if data, err = json.Marshal(e.data); err != nil {
					return fmt.Errorf("record %s: %w", e.kind, err)
				}
			}
			args = append(args, e.tenant, e.run, next[p], uuid.Must(uuid.NewV7()).String(), e.kind, now.UnixMicro(),
				e.who.Kind, e.who.ID, e.who.How, string(data), e.content)
		}
		_, err := t.ExecContext(ctx, "INSERT INTO events (tenant, run_id, run_seq, id, type, at, actor_kind, actor_id, actor_how, data, content) VALUES "+
			tuples(len(part), 11, 1), args...)
		if err != nil {
			return fmt.Errorf("record: %w", err)
		}
	}
	return nil
}

// place is where events count: a run, or with run "" the tenant.
type place struct{ tenant, run string }

// reserve moves the counters of some places and puts the numbers before the reserved ones into next.
func (t *tx) reserve(ctx context.Context, places []place, counts, next map[place]int64) error {
	var runs []string
	var args []any
	for _, p := range places {
		if p.run != "" {
			runs = append(runs, fmt.Sprintf("(%s, %d)", params(len(args)+1, 2), counts[p]))
			args = append(args, p.tenant, p.run)
			continue
		}
		var last int64
		if err := t.QueryRowContext(ctx, "UPDATE tenants SET event_seq = event_seq + $2 WHERE tenant = $1 RETURNING event_seq", p.tenant, counts[p]).
			Scan(&last); err != nil {
			return err
		}
		next[p] = last - counts[p]
	}
	if len(runs) == 0 {
		return nil
	}
	rows, err := t.QueryContext(ctx, "WITH v (tenant, id, n) AS (VALUES "+strings.Join(runs, ", ")+`) UPDATE runs SET event_seq = runs.event_seq + v.n
		FROM v WHERE runs.tenant = v.tenant AND runs.id = v.id RETURNING runs.tenant, runs.id, runs.event_seq`, args...)
	moved, err := collect(rows, err, func(row scanner) (p place, err error) {
		var last int64
		err = row.Scan(&p.tenant, &p.run, &last)
		next[p] = last - counts[p]
		return p, err
	})
	if err == nil && len(moved) != len(runs) {
		err = sql.ErrNoRows
	}
	return err
}

// queue writes messages into the message lane, due now.
func (t *tx) queue(ctx context.Context, now time.Time, messages []store.Message) error {
	if len(messages) == 0 {
		return nil
	}
	args := make([]any, 0, 12*len(messages))
	for _, m := range messages {
		args = append(args, m.Tenant, m.ID, m.RunID, m.ApprovalID, m.ChallengeID, m.Type, m.Channel, m.Email, m.Data,
			"pending", now.UnixMicro(), now.UnixMicro())
	}
	if _, err := t.ExecContext(ctx, "INSERT INTO messages (tenant, id, run_id, approval_id, challenge_id, type, channel, email, data, state, next_at, created_at) VALUES "+
		tuples(len(messages), 12, 1), args...); err != nil {
		return fmt.Errorf("queue: %w", err)
	}
	return t.notify(ctx, "messages")
}

// tuples writes n rows of width placeholders, numbered from first: ($1, $2), ($3, $4).
func tuples(n, width, first int) string {
	var b strings.Builder
	for row := range n {
		if row > 0 {
			b.WriteString(", ")
		}
		b.WriteByte('(')
		for col := range width {
			if col > 0 {
				b.WriteString(", ")
			}
			fmt.Fprintf(&b, "$%d", first+row*width+col)
		}
		b.WriteByte(')')
	}
	return b.String()
}

// now reads the transaction's clock once, for verbs whose statements must agree on it.
func (t *tx) now(ctx context.Context) (time.Time, error) {
	var us int64
	err := t.QueryRowContext(ctx, t.s.expand("SELECT {{now}}"), t.s.clock()).Scan(&us)
	return instant(us), err
}
