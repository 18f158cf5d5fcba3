package sqlstore

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/holdpoint/holdpoint"
)

const (
	// noteEvery is how often the last use of a key or session is written.
	noteEvery = time.Minute
	// noteWait bounds that write, which the caller waits for. Fail closed: a session that is not slid ends earlier.
	noteWait = time.Second
)

const keyColumns = `api_keys.id, api_keys.tenant, api_keys.kind, api_keys.name, api_keys.person_id, api_keys.scopes, api_keys.created_at,
 api_keys.last_used_at, api_keys.revoked_at`

// scanKey reads keyColumns, then whatever more the statement returns.
func scanKey(row scanner, more ...any) (holdpoint.Key, error) {
	var (
		k             holdpoint.Key
		scopes        string
		created       int64
		used, revoked sql.NullInt64
	)
	dest := append([]any{&k.ID, &k.Tenant, &k.Kind, &k.Name, &k.PersonID, &scopes, &created, &used, &revoked}, more...)
	if err := row.Scan(dest...); err != nil {
		return k, err
	}
	k.CreatedAt, k.LastUsedAt, k.RevokedAt = instant(created), instantPtr(used), instantPtr(revoked)
	if err := json.Unmarshal([]byte(scopes), &k.Scopes); err != nil {
		return k, fmt.Errorf("key %s: scopes: %w", k.ID, err)
	}
	return k, nil
}

// CreateKey implements store.People. A person's token needs a person who is not disabled (not_found); exists if the
// id or the hash is taken.
func (s *Store) CreateKey(ctx context.Context, k holdpoint.Key, tokenHash string, who holdpoint.Who) error {
	if (k.Kind == "person") != (k.PersonID != "") {
		return holdpoint.Errorf(holdpoint.CodeInvalidRequest, "a key belongs either to a machine or to one person; name the person, or make a machine key")
	}
	return s.do(ctx, "create key", func(t *tx) error {
		now, err := t.lockTenant(ctx, k.Tenant)
		if err != nil {
			return err
		}
		data := map[string]any{"key_id": k.ID, "kind": k.Kind, "scopes": k.Scopes}
		if k.PersonID != "" {
			if err := t.enabled(ctx, k.Tenant, k.PersonID); err != nil {
				return err
			}
			data["person_id"] = k.PersonID
		}
		res, err := t.ExecContext(ctx, `INSERT INTO api_keys (token_hash, tenant, id, kind, name, person_id, scopes, created_at)
 VALUES ($1, $2, $3, $4, $5, $6, $7, $8) ON CONFLICT DO NOTHING`,
			tokenHash, k.Tenant, k.ID, k.Kind, k.Name, k.PersonID, text(k.Scopes), now.UnixMicro())
		if err := oneRow(res, err, holdpoint.Errorf(holdpoint.CodeExists, "this key exists already; make a new one with a new secret")); err != nil {
			return err
		}
		return t.record(ctx, now, event{tenant: k.Tenant, kind: "key.created", who: who, data: data})
	})
}

// enabled answers not_found for a person who is missing or disabled. Under the tenant's lock nobody can be disabled
// between this look and the commit.
func (t *tx) enabled(ctx context.Context, tenant, id string) error {
	var found int64
	err := t.QueryRowContext(ctx, "SELECT 1 FROM people WHERE tenant = $1 AND id = $2 AND disabled = 0", tenant, id).Scan(&found)
	if errors.Is(err, sql.ErrNoRows) {
		return holdpoint.Errorf(holdpoint.CodeNotFound, "there is no person %s who may log in to this tenant; add or enable one first", id)
	}
	return err
}

// heldKey is a live key with its person, nil for a machine key.
type heldKey struct {
	key    holdpoint.Key
	person *holdpoint.Person
	now    int64
}

func noKey(string) error {
	return holdpoint.Errorf(holdpoint.CodeNotFound, "this key is unknown or revoked; ask for a new one")
}

// KeyByHash implements store.People: a read that begins after the call, so that a revocation counts at once, and at most
// one write a minute.
func (s *Store) KeyByHash(ctx context.Context, tokenHash string) (holdpoint.Key, *holdpoint.Person, error) {
	h, err := s.keys.do(ctx, tokenHash)
	if err != nil {
		return holdpoint.Key{}, nil, err
	}
	var used int64
	if h.key.LastUsedAt != nil {
		used = h.key.LastUsedAt.UnixMicro()
	}
	// Comparing with the old value lets one of many simultaneous calls write; the others change nothing.
	s.note(ctx, used, h.now, "UPDATE api_keys SET last_used_at = $3 WHERE token_hash = $1 AND COALESCE(last_used_at, 0) = $2", tokenHash)
	if h.person == nil {
		return h.key, nil, nil
	}
	p := *h.person
	return h.key, &p, nil
}

var hashes = columns("hash text")

func (s *Store) keysByHash(ctx context.Context, asked []string, found map[string]heldKey) error {
	rows := make([][]any, len(asked))
	for i, hash := range asked {
		rows[i] = []any{hash}
	}
	return s.each(hashes, rows, []any{s.clock()}, func(with string, args []any) error {
		returned, err := s.read.QueryContext(ctx, s.expand(with+" SELECT "+keyColumns+", {{now}}, api_keys.token_hash, "+personColumns+` FROM v JOIN api_keys ON api_keys.token_hash = v.hash
 LEFT JOIN people ON people.tenant = api_keys.tenant AND people.id = api_keys.person_id
 WHERE api_keys.revoked_at IS NULL AND (api_keys.person_id = '' OR people.disabled = 0)`), args...)
		_, err = collect(returned, err, func(row scanner) (h heldKey, err error) {
			var p holdpoint.Person
			var hash string
			dest, done := personDest(&p)
			if h.key, err = scanKey(row, append([]any{&h.now, &hash}, dest...)...); err == nil && h.key.PersonID != "" {
				done()
				h.person = &p
			}
			found[hash] = h
			return h, err
		})
		return err
	})
}

// note writes the last use of one key or session if the one that stands is a minute old. It is a transaction of its
// own, and its failure is not the caller's.
func (s *Store) note(ctx context.Context, used, now int64, update, tokenHash string) {
	if now-used < noteEvery.Microseconds() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, noteWait)
	defer cancel()
	if _, err := s.write.ExecContext(ctx, update, tokenHash, used, now); err != nil {
		s.log.Warn("last use not noted", "error", err)
	}
}

// ListKeys implements store.People, oldest first, with those that are revoked.
func (s *Store) ListKeys(ctx context.Context, tenant string) ([]holdpoint.Key, error) {
	rows, err := s.read.QueryContext(ctx, "SELECT "+keyColumns+" FROM api_keys WHERE tenant = $1 ORDER BY created_at, id", tenant)
	keys, err := collect(rows, err, func(row scanner) (holdpoint.Key, error) { return scanKey(row) })
	return keys, readErr("list keys", err, nil)
}

// RevokeKey implements store.People; not_found. A key that is revoked already is no error and no event.
func (s *Store) RevokeKey(ctx context.Context, tenant, id string, who holdpoint.Who) error {
	return s.do(ctx, "revoke key", func(t *tx) error {
		now, err := t.lockTenant(ctx, tenant)
		if err != nil {
			return err
		}
		var revoked sql.NullInt64
		err = t.QueryRowContext(ctx, "SELECT revoked_at FROM api_keys WHERE tenant = $1 AND id = $2", tenant, id).Scan(&revoked)
		if errors.Is(err, sql.ErrNoRows) {
			return holdpoint.Errorf(holdpoint.CodeNotFound, "there is no key %s in this tenant; list its keys", id)
		}
		if err != nil || revoked.Valid {
			return err
		}
		if _, err := t.ExecContext(ctx, "UPDATE api_keys SET revoked_at = $3 WHERE tenant = $1 AND id = $2", tenant, id, now.UnixMicro()); err != nil {
			return err
		}
		return t.record(ctx, now, event{tenant: tenant, kind: "key.revoked", who: who, data: map[string]any{"key_id": id}})
	})
}

// CreateSession implements store.People; not_found if the person is missing or disabled. Sessions of the person that
// are over are removed.
func (s *Store) CreateSession(ctx context.Context, tenant, personID, tokenHash string, idle, absolute time.Duration, who holdpoint.Who) error {
	return s.do(ctx, "create session", func(t *tx) error {
		now, err := t.lockTenant(ctx, tenant)
		if err != nil {
			return err
		}
		if err := t.enabled(ctx, tenant, personID); err != nil {
			return err
		}
		if _, err := t.ExecContext(ctx, "DELETE FROM sessions WHERE tenant = $1 AND person_id = $2 AND (expires_at <= $3 OR seen_at + idle_us <= $3)",
			tenant, personID, now.UnixMicro()); err != nil {
			return err
		}
		res, err := t.ExecContext(ctx, `INSERT INTO sessions (token_hash, tenant, person_id, created_at, seen_at, idle_us, expires_at)
 VALUES ($1, $2, $3, $4, $4, $5, $6) ON CONFLICT DO NOTHING`,
			tokenHash, tenant, personID, now.UnixMicro(), micros(idle), now.Add(absolute).UnixMicro())
		if err := oneRow(res, err, holdpoint.Errorf(holdpoint.CodeExists, "this session exists already; log in again")); err != nil {
			return err
		}
		return t.record(ctx, now, event{tenant: tenant, kind: "session.created", who: who, data: map[string]any{"person_id": personID}})
	})
}

// SessionByHash implements store.People; not_found if it is unknown, ended, over by either limit, or its person is
// disabled.
func (s *Store) SessionByHash(ctx context.Context, tokenHash string) (holdpoint.Person, error) {
	var p holdpoint.Person
	var seen, now int64
	dest, done := personDest(&p)
	err := s.read.QueryRowContext(ctx, s.expand("SELECT sessions.seen_at, {{now}}, "+personColumns+` FROM sessions
 JOIN people ON people.tenant = sessions.tenant AND people.id = sessions.person_id
 WHERE sessions.token_hash = $2 AND people.disabled = 0 AND sessions.expires_at > {{now}} AND sessions.seen_at + sessions.idle_us > {{now}}`),
		s.clock(), tokenHash).Scan(append([]any{&seen, &now}, dest...)...)
	if err != nil {
		return p, readErr("session by hash", err, holdpoint.Errorf(holdpoint.CodeNotFound, "this session is over; log in again"))
	}
	done()
	s.note(ctx, seen, now, "UPDATE sessions SET seen_at = $3 WHERE token_hash = $1 AND seen_at = $2", tokenHash)
	return p, nil
}

// EndSession implements store.People. A session that is gone already is no error.
func (s *Store) EndSession(ctx context.Context, tokenHash string) error {
	return s.do(ctx, "end session", func(t *tx) error {
		_, err := t.ExecContext(ctx, "DELETE FROM sessions WHERE token_hash = $1", tokenHash)
		return err
	})
}

// endSessions ends every session of a person and counts them.
func (t *tx) endSessions(ctx context.Context, tenant, id string) (int64, error) {
	res, err := t.ExecContext(ctx, "DELETE FROM sessions WHERE tenant = $1 AND person_id = $2", tenant, id)
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}
