package app

import (
	"errors"
	"io"
	"os"
	"strings"
	"syscall"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/internal/killpoint"
)

type noLock struct{}

func (noLock) Close() error { return nil }

// lockStore takes the lock file of a SQLite store, held for as long as the process serves it. PostgreSQL needs none. The
// kernel frees the lock when the process dies, however it dies.
func lockStore(db string) (io.Closer, error) {
	path, ok := strings.CutPrefix(db, "sqlite:")
	if !ok {
		return noLock{}, nil
	}
	f, err := os.OpenFile(path+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, holdpoint.Errorf(holdpoint.CodeUnavailable, "the lock file beside the store cannot be opened; does its directory exist, and may this user write there?").Wrap(err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return nil, errors.Join(holdpoint.Errorf(holdpoint.CodeNotAllowedNow, "another server holds this SQLite store; stop it first, or use PostgreSQL for several servers"), f.Close())
	}
	killpoint.Reach("app.locked")
	return f, nil
}
