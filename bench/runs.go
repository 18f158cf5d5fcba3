package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// measureRuns compares whole governed runs with a DBOS workflow that does the same: a durable start under an id, the
// model's draft recorded, a durable wait for a person's decision, one call of the provider, the recorded end.
func measureRuns(ctx context.Context, b *bench, d database) error {
	ours := side{fmt.Sprintf("Holdpoint, runs over HTTP, %d in flight", b.Lanes), func(ctx context.Context) (float64, error) { return b.governed(ctx, d) }}
	theirs := side{fmt.Sprintf("DBOS, workflows in process, %d in flight", b.Lanes), func(ctx context.Context) (float64, error) { return b.workflows(ctx, d) }}
	return b.compare(ctx, d, "governed run", "runs/s", 4.0, ours, theirs)
}

// governed keeps the lanes working runs from claim to completion and gives completed runs per second.
func (b *bench) governed(ctx context.Context, d database) (_ float64, err error) {
	p, err := startProvider()
	if err != nil {
		return 0, err
	}
	defer p.close()
	address, err := d.create(ctx, b, "ours", "")
	if err != nil {
		return 0, err
	}
	defer func() { err = firstError(err, d.drop(ctx, address)) }()
	i, err := b.newInstance(ctx, address, p.url())
	if err != nil {
		return 0, err
	}
	if err := i.serve(ctx); err != nil {
		return 0, err
	}
	defer func() { err = firstError(err, i.stop()) }()
	if err := firstError(i.turn(true), d.settle(ctx)); err != nil {
		return 0, err
	}
	db, err := d.open(address)
	if err != nil {
		return 0, err
	}
	defer func() { err = firstError(err, db.Close()) }()
	work := func(lane int) (func(n int64) error, func(), error) {
		w, err := newWorker(i, lane)
		if err != nil {
			return nil, nil, err
		}
		return func(n int64) error {
			// Registered before the claim, so that the request cannot come first.
			arrived := p.expect(string(appendName(nil, lane, n)))
			if err := w.approved(lane, n); err != nil {
				return err
			}
			_, err := within(ctx, arrived)
			return err
		}, w.close, nil
	}
	// A run that reached the provider is complete once its answer is recorded; the clock stops when the last one is.
	return b.finished(ctx, work, func(started int64) error { return completed(ctx, db, started) })
}

// worker plays both parts around one run: the machine that claims and drafts, and the person who decides.
type worker struct {
	wire             *wire
	machine, approve header
	body             []byte
}

func newWorker(i *instance, lane int) (*worker, error) {
	w, err := dial(i.addr)
	if err != nil {
		return nil, err
	}
	return &worker{wire: w, machine: head("POST", i.machines[lane%len(i.machines)]), approve: head("POST", i.approver)}, nil
}

func (w *worker) close() { w.wire.close() }

// approved brings one event through the gate.
func (w *worker) approved(lane int, n int64) error {
	approval, digest, err := w.held(lane, n)
	if err != nil {
		return err
	}
	w.body = append(append(append(w.body[:0], `{"decision":"approve","digest":"`...), digest...), `"}`...)
	_, err = w.wire.do(http.StatusOK, w.approve, "/v1/approvals/"+approval+"/decisions", w.body)
	return err
}

// held brings one event to the gate and gives the approval that asks about it.
func (w *worker) held(lane int, n int64) (approval, digest string, err error) {
	w.body = claimBody(w.body[:0], lane, n)
	answer, err := w.wire.do(http.StatusCreated, w.machine, "/v1/claims", w.body)
	if err != nil {
		return "", "", err
	}
	run, err1 := find(answer, "run", "id")
	owner, err2 := find(answer, "lease", "owner")
	version, err3 := find(answer, "lease", "version")
	if err := errors.Join(err1, err2, err3); err != nil {
		return "", "", err
	}
	w.body = append(w.body[:0], `{"owner":"`...)
	w.body = append(append(w.body, owner...), `","version":`...)
	w.body = append(append(w.body, version...), `,"output":{"text":"`+draftText+`"},"model":{"endpoint_class":"local","name":"any","revision":"1","finish_reason":"stop","prompt_version":"3"}}`...)
	if answer, err = w.wire.do(http.StatusOK, w.machine, "/v1/runs/"+run+"/draft", w.body); err != nil {
		return "", "", err
	}
	approval, err1 = find(answer, "approval", "id")
	digest, err2 = find(answer, "approval", "digest")
	return approval, digest, errors.Join(err1, err2)
}

// draftText is what the model answers in every run, on both sides.
const draftText = "Your parcel is on its way and arrives tomorrow before noon; the carrier has the number that we sent you."

// within waits for a request that must arrive, and gives when it did.
func within(ctx context.Context, arrived <-chan time.Time) (time.Time, error) {
	select {
	case at := <-arrived:
		return at, nil
	case <-ctx.Done():
		return time.Time{}, ctx.Err()
	case <-time.After(time.Minute):
		return time.Time{}, errors.New("the request of an approved effect did not reach the provider within a minute")
	}
}

// finished starts runs in every lane for the window, after a warm-up, then lets all of them end and gives the runs of the
// window per second of window and end.
func (b *bench) finished(ctx context.Context, lane func(lane int) (func(n int64) error, func(), error), all func(started int64) error) (float64, error) {
	warm, err := b.during(ctx, b.Warm, 0, lane)
	if err == nil {
		err = all(warm)
	}
	if err != nil {
		return 0, err
	}
	start := time.Now()
	counted, err := b.during(ctx, b.Window, 1<<40, lane)
	if err == nil {
		err = all(warm + counted)
	}
	return float64(counted) / time.Since(start).Seconds(), err
}

// during starts calls in every lane for as long as d and gives how many succeeded. Calls are numbered from first.
func (b *bench) during(ctx context.Context, d time.Duration, first int64, lane func(lane int) (func(n int64) error, func(), error)) (int64, error) {
	var count atomic.Int64
	var lanes sync.WaitGroup
	errs := make([]error, b.Lanes)
	stop := time.Now().Add(d)
	for l := range b.Lanes {
		once, end, err := lane(l)
		if err != nil {
			errs[l] = err
			break
		}
		lanes.Go(func() {
			defer end()
			for n := first; errs[l] == nil && time.Now().Before(stop); n++ {
				if errs[l] = once(n); errs[l] == nil {
					count.Add(1)
				}
			}
		})
	}
	lanes.Wait()
	return count.Load(), errors.Join(errs...)
}

// completed waits until as many runs are complete.
func completed(ctx context.Context, db *sql.DB, want int64) error {
	return counts(ctx, db, "SELECT count(*) FROM runs WHERE state = 'completed'", want)
}

// counts waits until a count is as wanted, for at most a minute without progress.
func counts(ctx context.Context, db *sql.DB, query string, want int64) error {
	last, moved := int64(-1), time.Now()
	for {
		var n int64
		if err := db.QueryRowContext(ctx, query).Scan(&n); err != nil {
			return err
		}
		if n == want {
			return nil
		}
		if n != last {
			last, moved = n, time.Now()
		}
		if time.Since(moved) > time.Minute || n > want {
			return errors.New(query + " gives " + strconv.FormatInt(n, 10) + " instead of " + strconv.FormatInt(want, 10))
		}
		wait(ctx, 5*time.Millisecond)
	}
}
