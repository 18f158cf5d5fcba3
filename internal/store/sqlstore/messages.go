package sqlstore

import (
	"cmp"
	"context"
	"database/sql"
	"slices"
	"time"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/internal/store"
)

const messageColumns = `messages.tenant, messages.id, messages.run_id, messages.approval_id, messages.challenge_id, messages.type, messages.channel,
 messages.email, messages.state, messages.attempts, messages.detail, messages.created_at, messages.delivered_at`

// scanMessage reads messageColumns, then whatever more the statement returns.
func scanMessage(row scanner, more ...any) (holdpoint.MessageRecord, error) {
	var m holdpoint.MessageRecord
	var created int64
	var delivered sql.NullInt64
	err := row.Scan(append([]any{&m.Tenant, &m.ID, &m.RunID, &m.ApprovalID, &m.ChallengeID, &m.Type, &m.Channel,
		&m.Email, &m.State, &m.Attempts, &m.Detail, &created, &delivered}, more...)...)
	m.CreatedAt, m.DeliveredAt = instant(created), instantPtr(delivered)
	return m, err
}

// AddMessages implements store.Messages. exists if an id is taken, and then none is queued: the same call again after
// a lost answer changes nothing.
func (s *Store) AddMessages(ctx context.Context, m []store.Message) error {
	err := s.do(ctx, "add messages", func(t *tx) error {
		now, err := t.now(ctx)
		if err != nil {
			return err
		}
		err = t.queue(ctx, now, m)
		if unique(err) {
			return holdpoint.Errorf(holdpoint.CodeExists, "one of these messages is queued already; nothing was queued twice")
		}
		return err
	})
	if err == nil && len(m) > 0 {
		s.hint("messages")
	}
	return err
}

// LeaseMessages implements store.Messages. A lease that ran out is taken over: a message is delivered at least once.
func (s *Store) LeaseMessages(ctx context.Context, owner string, lease time.Duration, limit int) ([]store.Message, error) {
	var leased []store.Message
	err := s.do(ctx, "lease messages", func(t *tx) error {
		// One statement picks and takes, so of several leasers each gets rows of its own: on PostgreSQL they pass over
		// rows that another one is taking, on SQLite they come one after another.
		rows, err := t.QueryContext(ctx, s.expand(`WITH picked AS MATERIALIZED (
 SELECT tenant, id FROM messages
 WHERE state = 'pending' AND next_at <= {{now}} AND (lease_expires_at IS NULL OR lease_expires_at <= {{now}})
  AND NOT EXISTS (SELECT 1 FROM switches WHERE switches.tenant = messages.tenant AND switches.scope = 'messages' AND switches.is_on = 0)
 ORDER BY next_at, id, tenant LIMIT $4 {{for_update}} {{skip_locked}})
 UPDATE messages SET lease_owner = $2, lease_expires_at = {{now}} + $3, attempts = attempts + 1
 FROM picked WHERE messages.tenant = picked.tenant AND messages.id = picked.id
 RETURNING `+messageColumns+`, messages.data, COALESCE((SELECT tenants.active_policy FROM tenants WHERE tenants.tenant = messages.tenant), '')`), s.clock(), owner, micros(lease), limit)
		leased, err = collect(rows, err, func(row scanner) (store.Message, error) {
			var m store.Message
			var err error
			m.MessageRecord, err = scanMessage(row, &m.Data, &m.Policy)
			return m, err
		})
		return err
	})
	slices.SortFunc(leased, func(a, b store.Message) int {
		return cmp.Or(a.CreatedAt.Compare(b.CreatedAt), cmp.Compare(a.ID, b.ID), cmp.Compare(a.Tenant, b.Tenant))
	})
	return leased, err
}

// SettleMessage implements store.Messages. state is delivered, dropped, failed, or pending for another try after
// delay. lease_lost if the message is not leased by owner: settled, taken over, or unknown. A lease that ran out and
// was not taken over still counts, because a delivery that is known is better recorded than repeated.
func (s *Store) SettleMessage(ctx context.Context, owner string, id, tenant, state, detail string, delay time.Duration) error {
	switch state {
	case "delivered", "dropped", "failed", "pending":
	default:
		return holdpoint.Errorf(holdpoint.CodeInternal, "a message cannot become %s; it is delivered, dropped, failed or pending", state)
	}
	if owner == "" {
		return errMessageLost
	}
	return s.do(ctx, "settle message", func(t *tx) error {
		// Compare-and-set on the owner: a sender that was overtaken cannot undo what the next one recorded.
		res, err := t.ExecContext(ctx, s.expand(`UPDATE messages SET state = $5, detail = $6, next_at = {{now}} + $7, lease_owner = '', lease_expires_at = NULL,
  delivered_at = CASE WHEN $5 = 'delivered' THEN {{now}} END
 WHERE tenant = $2 AND id = $3 AND state = 'pending' AND lease_owner = $4`),
			s.clock(), tenant, id, owner, state, detail, micros(delay))
		return oneRow(res, err, errMessageLost)
	})
}

var errMessageLost = holdpoint.Errorf(holdpoint.CodeLeaseLost, "this message is not leased by this sender any more; leave it to the one that has it")
