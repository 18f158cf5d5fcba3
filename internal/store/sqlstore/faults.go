package sqlstore

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"modernc.org/sqlite"

	"github.com/holdpoint/holdpoint"
)

// What an operator does about a store that does not serve. Each is the middle of one sentence.
const (
	faultFull      = "the disk of the database is full; free space there"
	faultMemory    = "the database has run out of memory; give it more"
	faultCrowded   = "the database accepts no more connections; close some or raise its limit"
	faultStopping  = "the database is stopping or starting; wait until it runs"
	faultAway      = "the database cannot be reached; check that it runs and that HOLDPOINT_DB names it"
	faultReadOnly  = "the database may only be read; let it be written, or name the primary server in HOLDPOINT_DB"
	faultContended = "another transaction held for too long what this call needs; look for what holds it if this stays so"
	faultBroken    = "the database cannot read or write its files; look at its disk"
	faultLate      = "it took too long; look at the load of the database if this stays so"
)

// unavailable says that the store did not serve a call: nothing is known to have happened, and the whole call may be
// repeated. Where the database says why, by a numeric code, the sentence says what to do about it.
func unavailable(verb string, err error) error {
	if why := fault(err); why != "" {
		return holdpoint.Errorf(holdpoint.CodeUnavailable, "the store did not answer %s: %s, then repeat the call", verb, why).Wrap(err)
	}
	return holdpoint.Errorf(holdpoint.CodeUnavailable, "the store did not answer %s; repeat the call", verb).Wrap(err)
}

// fault tells why a database did not serve, by its numeric codes, never by its messages; "" if it does not say.
func fault(err error) string {
	var pg *pgconn.PgError
	var lite *sqlite.Error
	var connect *pgconn.ConnectError
	var wire net.Error
	switch {
	case errors.As(err, &pg):
		return postgresFault(pg.Code)
	case errors.As(err, &lite):
		return sqliteFault(lite.Code())
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return faultLate
	case errors.As(err, &connect), errors.As(err, &wire):
		return faultAway
	}
	return ""
}

// illFor is how long a store that could not write counts as one that cannot: small writes may still succeed on a full disk.
const illFor = 5 * time.Second

// health remembers the last write that failed for a reason that will meet others too.
type health struct {
	mu  sync.Mutex
	at  time.Time
	err error
}

// note takes the error of a write.
func (h *health) note(cause, err error) {
	switch fault(cause) {
	case faultFull, faultReadOnly, faultBroken:
		h.mu.Lock()
		h.at, h.err = time.Now(), err
		h.mu.Unlock()
	}
}

// check gives the error of a write that failed just now, or nil.
func (h *health) check() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.err != nil && time.Since(h.at) < illFor {
		return h.err
	}
	return nil
}

// postgresFault reads an SQLSTATE.
func postgresFault(code string) string {
	switch code {
	case "53100": // disk_full
		return faultFull
	case "53200": // out_of_memory
		return faultMemory
	case "53300": // too_many_connections
		return faultCrowded
	case "57P01", "57P02", "57P03": // admin_shutdown, crash_shutdown, cannot_connect_now
		return faultStopping
	case "25006": // read_only_sql_transaction
		return faultReadOnly
	case "55P03", "40001", "40P01": // lock_not_available, and what is left of repetitions that were not enough
		return faultContended
	case "57014": // query_canceled
		return faultLate
	case "58030": // io_error
		return faultBroken
	}
	if len(code) == 5 && code[:2] == "08" { // connection exceptions
		return faultAway
	}
	return ""
}

// sqliteFault reads a result code, whose low byte is the primary one.
func sqliteFault(code int) string {
	switch code & 0xff {
	case 13: // SQLITE_FULL
		return faultFull
	case 7: // SQLITE_NOMEM
		return faultMemory
	case 8: // SQLITE_READONLY
		return faultReadOnly
	case 5, 6: // SQLITE_BUSY, SQLITE_LOCKED
		return faultContended
	case 10: // SQLITE_IOERR
		return faultBroken
	case 14: // SQLITE_CANTOPEN
		return faultAway
	}
	return ""
}
