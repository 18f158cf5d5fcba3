package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"time"

	"github.com/dbos-inc/dbos-transact-golang/dbos"
	_ "github.com/dbos-inc/dbos-transact-golang/dbos/driver/sqlite" // its system database on SQLite
)

// dbosConnections is DBOS's pool on PostgreSQL: one connection for each workflow in flight, where its default of 20 would
// have workflows wait for one.
const dbosConnections = 64

// event is what a delivery brings.
type event struct {
	ID       string            `json:"id"`
	Total    string            `json:"total"`
	Customer map[string]string `json:"customer"`
}

// note is what the provider gets, and noted what it answers.
type (
	note struct {
		To   string `json:"to"`
		Text string `json:"text"`
		Ref  string `json:"external_ref"`
	}
	noted struct {
		ID string `json:"id"`
	}
)

// workflows keeps the lanes working DBOS workflows and gives finished ones per second.
func (b *bench) workflows(ctx context.Context, d database) (_ float64, err error) {
	p, err := startProvider()
	if err != nil {
		return 0, err
	}
	defer p.close()
	address, err := d.create(ctx, b, "theirs", "")
	if err != nil {
		return 0, err
	}
	defer func() { err = firstError(err, d.drop(ctx, address)) }()
	config := dbos.Config{AppName: "bench", Logger: slog.New(slog.NewTextHandler(io.Discard, &slog.HandlerOptions{Level: slog.LevelWarn}))}
	if d.kind() == "postgres" {
		config.DatabaseURL = fmt.Sprintf("%s&pool_max_conns=%d", address, dbosConnections)
	} else {
		// As DBOS opens it, but as durable as the other side: synchronous=FULL instead of NORMAL.
		db, err := d.open(address)
		if err != nil {
			return 0, err
		}
		db.SetMaxOpenConns(8)
		db.SetMaxIdleConns(8)
		defer func() { _ = db.Close() }()
		config.SQLiteSystemDB = db
	}
	app, err := dbos.NewContext(ctx, config)
	if err != nil {
		return 0, err
	}
	client := providerClient(b.Lanes)
	workflow := func(c dbos.Context, e event) (string, error) { return governedWorkflow(c, e, client, p.url()) }
	dbos.RegisterWorkflow(app, workflow, dbos.WithWorkflowName("order"))
	if err := dbos.Launch(app); err != nil {
		return 0, err
	}
	defer func() { err = firstError(err, dbos.Shutdown(app, 30*time.Second)) }()
	if err := d.settle(ctx); err != nil {
		return 0, err
	}
	lane := func(lane int) (func(n int64) error, func(), error) {
		return func(n int64) error {
			id := string(appendName(nil, lane, n))
			h, err := dbos.RunWorkflow(app, workflow, event{ID: id, Total: "10.50", Customer: map[string]string{"email": "jane@acme.example"}}, dbos.WithWorkflowID(id))
			if err != nil {
				return err
			}
			if err := dbos.Send(app, id, "approve", "decision"); err != nil {
				return err
			}
			result, err := h.GetResult()
			if err == nil && result != "note-1" {
				err = fmt.Errorf("the workflow ended with %q", result)
			}
			return err
		}, func() {}, nil
	}
	return b.finished(ctx, lane, func(started int64) error {
		if got := p.count.Load(); got != started {
			return fmt.Errorf("%d workflows made %d requests", started, got)
		}
		return nil
	})
}

// governedWorkflow is the same run as DBOS writes it.
func governedWorkflow(c dbos.Context, e event, client *http.Client, provider string) (string, error) {
	draft, err := dbos.RunAsStep(c, func(context.Context) (string, error) { return draftText, nil }, dbos.WithStepName("model"))
	if err != nil {
		return "", err
	}
	decision, err := dbos.Recv[string](c, "decision", time.Minute)
	if err != nil || decision != "approve" {
		return "", fmt.Errorf("decision %q: %w", decision, err)
	}
	return dbos.RunAsStep(c, func(ctx context.Context) (string, error) {
		return call(ctx, client, provider, note{To: e.ID, Text: draft, Ref: e.ID})
	}, dbos.WithStepName("note"))
}

// providerClient is net/http with enough connections kept open.
func providerClient(connections int) *http.Client {
	return &http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{MaxIdleConns: connections, MaxIdleConnsPerHost: connections}}
}

// call makes the request that Holdpoint's connector makes.
func call(ctx context.Context, client *http.Client, provider string, n note) (string, error) {
	body, err := json.Marshal(n)
	if err != nil {
		return "", err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, provider+"/notes", bytes.NewReader(body))
	if err != nil {
		return "", err
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := client.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		return "", err
	}
	if resp.StatusCode != http.StatusOK {
		return "", fmt.Errorf("the provider answered %d", resp.StatusCode)
	}
	var made noted
	return made.ID, firstError(json.Unmarshal(answer, &made), nil)
}
