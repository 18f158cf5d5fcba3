package sqlstore

import (
	"context"
	"database/sql"
	"errors"

	"github.com/holdpoint/holdpoint"
)

const challengeColumns = `challenges.tenant, challenges.id, challenges.approval_id, challenges.email, challenges.channel, challenges.expires_at,
 challenges.opened_at, challenges.used_at, challenges.revoked_at`

func scanChallenge(row scanner) (holdpoint.Challenge, error) {
	var c holdpoint.Challenge
	var expires int64
	var opened, used, revoked sql.NullInt64
	err := row.Scan(&c.Tenant, &c.ID, &c.ApprovalID, &c.Email, &c.Channel, &expires, &opened, &used, &revoked)
	c.ExpiresAt, c.OpenedAt, c.UsedAt, c.RevokedAt = instant(expires), instantPtr(opened), instantPtr(used), instantPtr(revoked)
	return c, err
}

// noChallenge answers all that is not a live way in alike.
func noChallenge() error {
	return holdpoint.Errorf(holdpoint.CodeNotFound, "this link opens nothing; sign in and look into your inbox")
}

// MintChallengeToken implements store.Gates. The same token again changes nothing.
func (s *Store) MintChallengeToken(ctx context.Context, tenant, challengeID, tokenHash string) error {
	return s.do(ctx, "MintChallengeToken", func(t *tx) error {
		now, err := t.now(ctx)
		if err != nil {
			return err
		}
		// One statement: the challenge cannot go away between the look and the token.
		res, err := t.ExecContext(ctx, `INSERT INTO challenge_tokens (token_hash, tenant, challenge_id, created_at)
 SELECT $3, tenant, id, $4 FROM challenges WHERE tenant = $1 AND id = $2
 ON CONFLICT (token_hash) DO UPDATE SET token_hash = excluded.token_hash
 WHERE challenge_tokens.tenant = excluded.tenant AND challenge_tokens.challenge_id = excluded.challenge_id`,
			tenant, challengeID, tokenHash, now.UnixMicro())
		return oneRow(res, err, noChallenge())
	})
}

// ChallengeByToken implements store.Gates.
func (s *Store) ChallengeByToken(ctx context.Context, tokenHash string) (holdpoint.Challenge, error) {
	c, err := scanChallenge(s.read.QueryRowContext(ctx, "SELECT "+challengeColumns+` FROM challenge_tokens
 JOIN challenges ON challenges.tenant = challenge_tokens.tenant AND challenges.id = challenge_tokens.challenge_id
 WHERE challenge_tokens.token_hash = $1`, tokenHash))
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return holdpoint.Challenge{}, noChallenge()
	case err != nil:
		return holdpoint.Challenge{}, unavailable("ChallengeByToken", err)
	}
	return c, nil
}

// OpenChallenge implements store.Gates. Opening it again changes nothing and answers the same.
func (s *Store) OpenChallenge(ctx context.Context, tenant, challengeID string) (holdpoint.Challenge, error) {
	var out holdpoint.Challenge
	err := s.do(ctx, "OpenChallenge", func(t *tx) error {
		var approvalID string
		err := t.QueryRowContext(ctx, "SELECT approval_id FROM challenges WHERE tenant = $1 AND id = $2", tenant, challengeID).Scan(&approvalID)
		if errors.Is(err, sql.ErrNoRows) {
			return noChallenge()
		}
		if err != nil {
			return err
		}
		// Under the run's lock, which every decision and end takes: what is live here is live when it is opened.
		run, a, now, err := t.lockApproval(ctx, tenant, approvalID)
		if err != nil {
			return err
		}
		c, err := scanChallenge(t.QueryRowContext(ctx, "SELECT "+challengeColumns+" FROM challenges WHERE tenant = $1 AND id = $2", tenant, challengeID))
		if err != nil {
			return err
		}
		if c.UsedAt != nil || c.RevokedAt != nil || !now.Before(c.ExpiresAt) || a.State != holdpoint.ApprovalPending {
			return noChallenge()
		}
		if out = c; c.OpenedAt != nil {
			return nil
		}
		out.OpenedAt = &now
		if _, err := t.ExecContext(ctx, "UPDATE challenges SET opened_at = $3 WHERE tenant = $1 AND id = $2 AND opened_at IS NULL",
			tenant, challengeID, now.UnixMicro()); err != nil {
			return err
		}
		return t.record(ctx, now, event{tenant: tenant, run: run.ID, kind: "challenge.opened", who: holdpoint.Who{Kind: "person", ID: c.Email, How: "link"},
			data: map[string]any{"challenge_id": c.ID, "approval_id": c.ApprovalID, "channel": c.Channel}})
	})
	if err != nil {
		return holdpoint.Challenge{}, err
	}
	return out, nil
}
