package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// measureDispatch compares sending a backlog of approved effects with River working as many jobs that make the same call.
func measureDispatch(ctx context.Context, b *bench, d database) (err error) {
	p, err := startProvider() // one for all runs: the backlog's policy names it
	if err != nil {
		return err
	}
	defer p.close()
	backlog, i, err := b.backlog(ctx, d, p)
	if err != nil {
		return err
	}
	defer func() { err = firstError(err, d.drop(ctx, backlog)) }()
	ours := side{fmt.Sprintf("Holdpoint, %d approved effects", b.Backlog), func(ctx context.Context) (float64, error) { return b.drain(ctx, d, p, i, backlog) }}
	theirs := side{fmt.Sprintf("River, %d jobs", b.Backlog), func(ctx context.Context) (float64, error) { return b.jobs(ctx, d, p) }}
	return b.compare(ctx, d, "dispatch", "effects/s", 0.7, ours, theirs)
}

// backlog makes a store in which the effects are approved and the switch is off. It is copied for each run.
func (b *bench) backlog(ctx context.Context, d database, p *provider) (address string, i *instance, err error) {
	if address, err = d.create(ctx, b, "backlog", ""); err != nil {
		return "", nil, err
	}
	if i, err = b.newInstance(ctx, address, p.url()); err != nil {
		return "", nil, err
	}
	if err := i.serve(ctx); err != nil {
		return "", nil, err
	}
	defer func() { err = firstError(err, i.stop()) }()
	var next atomic.Int64
	var lanes sync.WaitGroup
	errs := make([]error, b.Lanes)
	for l := range b.Lanes {
		lanes.Go(func() {
			w, err := newWorker(i, l)
			for ; err == nil; err = w.approved(l, next.Load()) {
				if next.Add(1) > int64(b.Backlog) {
					w.close()
					return
				}
			}
			errs[l] = err
		})
	}
	lanes.Wait()
	return address, i, errors.Join(errs...)
}

// drain turns the switches on over a copy of the backlog and gives effects per second until the last is settled.
func (b *bench) drain(ctx context.Context, d database, p *provider, i *instance, backlog string) (_ float64, err error) {
	address, err := d.create(ctx, b, "ours", backlog)
	if err != nil {
		return 0, err
	}
	defer func() { err = firstError(err, d.drop(ctx, address)) }()
	db, err := d.open(address)
	if err != nil {
		return 0, err
	}
	defer func() { err = firstError(err, db.Close()) }()
	i.at(address)
	if err := i.serve(ctx); err != nil {
		return 0, err
	}
	defer func() { err = firstError(err, i.stop()) }()
	if err := d.settle(ctx); err != nil {
		return 0, err
	}
	p.count.Store(0)
	start := time.Now()
	if err := i.turn(true); err != nil {
		return 0, err
	}
	if err := p.served(ctx, int64(b.Backlog)); err != nil {
		return 0, err
	}
	err = completed(ctx, db, int64(b.Backlog))
	return float64(b.Backlog) / time.Since(start).Seconds(), err
}

// served waits until so many requests have arrived, for at most a minute without one.
func (p *provider) served(ctx context.Context, want int64) error {
	last, moved := int64(-1), time.Now()
	for ctx.Err() == nil {
		n := p.count.Load()
		if n >= want {
			return nil
		}
		if n != last {
			last, moved = n, time.Now()
		}
		if time.Since(moved) > time.Minute {
			return fmt.Errorf("the provider got %d requests of %d and no more for a minute", n, want)
		}
		wait(ctx, 2*time.Millisecond)
	}
	return ctx.Err()
}
