package main

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/riverdriver/riversqlite"
	"github.com/riverqueue/river/rivermigrate"
)

// River's settings, for throughput: the shortest waits between fetches, and more workers than the provider needs.
const (
	riverWorkers     = 500
	riverConnections = 20
	riverCooldown    = 2 * time.Millisecond
	riverPoll        = 20 * time.Millisecond
)

// Kind names the job.
func (note) Kind() string { return "note" }

// sender works a job with the request that Holdpoint's connector makes.
type sender struct {
	river.WorkerDefaults[note]
	client   *http.Client
	provider string
}

func (s *sender) Work(ctx context.Context, job *river.Job[note]) error {
	_, err := call(ctx, s.client, s.provider, job.Args)
	return err
}

// jobs lets River work the jobs and gives jobs per second until the last is recorded as completed.
func (b *bench) jobs(ctx context.Context, d database, p *provider) (_ float64, err error) {
	address, err := d.create(ctx, b, "theirs", "")
	if err != nil {
		return 0, err
	}
	defer func() { err = firstError(err, d.drop(ctx, address)) }()
	if d.kind() == "postgres" {
		config, err := pgxpool.ParseConfig(address)
		if err != nil {
			return 0, err
		}
		config.MaxConns = riverConnections
		pool, err := pgxpool.NewWithConfig(ctx, config)
		if err != nil {
			return 0, err
		}
		defer pool.Close()
		return drainJobs(ctx, b, d, p, address, riverpgxv5.New(pool))
	}
	db, err := d.open(address)
	if err != nil {
		return 0, err
	}
	defer func() { _ = db.Close() }()
	db.SetMaxOpenConns(1) // as its driver's documentation asks
	return drainJobs(ctx, b, d, p, address, riversqlite.New(db))
}

func drainJobs[T any](ctx context.Context, b *bench, d database, p *provider, address string, driver riverdriver.Driver[T]) (float64, error) {
	log := slog.New(slog.NewTextHandler(io.Discard, &slog.HandlerOptions{Level: slog.LevelWarn}))
	migrator, err := rivermigrate.New(driver, &rivermigrate.Config{Logger: log})
	if err != nil {
		return 0, err
	}
	if _, err := migrator.Migrate(ctx, rivermigrate.DirectionUp, nil); err != nil {
		return 0, err
	}
	workers := river.NewWorkers()
	river.AddWorker(workers, &sender{client: providerClient(riverWorkers), provider: p.url()})
	client, err := river.NewClient(driver, &river.Config{
		FetchCooldown: riverCooldown, FetchPollInterval: riverPoll, Logger: log, Workers: workers,
		Queues: map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: riverWorkers}},
	})
	if err != nil {
		return 0, err
	}
	for done := 0; done < b.Backlog; {
		batch := make([]river.InsertManyParams, min(1000, b.Backlog-done))
		for i := range batch {
			id := string(appendName(nil, 0, int64(done+i)))
			batch[i] = river.InsertManyParams{Args: note{To: id, Text: draftText, Ref: id}}
		}
		if _, err := client.InsertMany(ctx, batch); err != nil {
			return 0, err
		}
		done += len(batch)
	}
	if err := d.settle(ctx); err != nil {
		return 0, err
	}
	db, err := d.open(address)
	if err != nil {
		return 0, err
	}
	defer func() { _ = db.Close() }()
	p.count.Store(0)
	start := time.Now()
	if err := client.Start(ctx); err != nil {
		return 0, err
	}
	if err = p.served(ctx, int64(b.Backlog)); err == nil {
		err = counts(ctx, db, "SELECT count(*) FROM river_job WHERE state = 'completed'", int64(b.Backlog))
	}
	rate := float64(b.Backlog) / time.Since(start).Seconds()
	return rate, firstError(err, client.Stop(ctx))
}
