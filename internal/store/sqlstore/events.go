package sqlstore

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
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
	seq         int64  // its number in the run if its statement has counted it, else 0
}

// eventRows are the columns of evidence.
var eventRows = columns(`tenant text, run_id text, run_seq bigint, id text, type text, at bigint, actor_kind text, actor_id text, actor_how text,
 data text, content bytes`)

// record writes events in the order given. It first moves the counter of each run whose events are not counted yet, which
// also locks the row, so that sequence numbers have no gaps and follow the order of commits. Callers that write events of
// several runs hold their rows already.
func (t *tx) record(ctx context.Context, now time.Time, events ...event) error {
	if len(events) == 0 {
		return nil
	}
	next, err := t.reserve(ctx, events)
	if err != nil {
		return fmt.Errorf("record: %w", err)
	}
	rows := make([][]any, len(events))
	for i, e := range events {
		if e.seq == 0 {
			p := place{e.tenant, e.run}
			next[p]++
			e.seq = next[p]
		}
		data := []byte("{}")
		if len(e.data) > 0 {
			if data, err = json.Marshal(e.data); err != nil {
				return fmt.Errorf("record %s: %w", e.kind, err)
			}
		}
		rows[i] = []any{e.tenant, e.run, e.seq, uuid.Must(uuid.NewV7()).String(), e.kind, now.UnixMicro(), e.who.Kind, e.who.ID, e.who.How,
			string(data), e.content}
	}
	if err := t.insert(ctx, "events", eventRows, rows); err != nil {
		return fmt.Errorf("record: %w", err)
	}
	t.events += len(events)
	return nil
}

// place is where events count: a run, or with run "" the tenant.
type place struct{ tenant, run string }

// counters are the columns of runs whose counter moves by n.
var counters = columns("tenant text, id text, n bigint")

// reserve moves the counters of the places whose events have no number and gives the last number before them.
func (t *tx) reserve(ctx context.Context, events []event) (map[place]int64, error) {
	counts, next := map[place]int64{}, map[place]int64{}
	for _, e := range events {
		if e.seq == 0 {
			counts[place{e.tenant, e.run}]++
		}
	}
	var rows [][]any
	for p, n := range counts {
		if p.run != "" {
			rows = append(rows, []any{p.tenant, p.run, n})
			continue
		}
		var last int64
		if err := t.QueryRowContext(ctx, "UPDATE tenants SET event_seq = event_seq + $2 WHERE tenant = $1 RETURNING event_seq", p.tenant, n).Scan(&last); err != nil {
			return nil, err
		}
		next[p] = last - n
	}
	moved := 0
	err := t.each(counters, rows, nil, func(with string, args []any) error {
		returned, err := t.QueryContext(ctx, with+` UPDATE runs SET event_seq = runs.event_seq + v.n FROM v
 WHERE runs.tenant = v.tenant AND runs.id = v.id RETURNING runs.tenant, runs.id, runs.event_seq`, args...)
		some, err := collect(returned, err, func(row scanner) (p place, err error) {
			var last int64
			err = row.Scan(&p.tenant, &p.run, &last)
			next[p] = last - counts[p]
			return p, err
		})
		moved += len(some)
		return err
	})
	if err == nil && moved != len(rows) {
		err = sql.ErrNoRows
	}
	return next, err
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
	t.notify("messages")
	return nil
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
