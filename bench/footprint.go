package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// What the footprint is held to.
const (
	targetRSS      = 40 // MB
	targetLogIns   = 64 // MB
	targetStart    = 300 * time.Millisecond
	targetDecision = 20 * time.Millisecond
)

// footprintPolicy has as much in it as the demo's policy: four connectors, one with look-up, and four workflows.
var footprintPolicy = strings.Replace(policyDocument, "workflows:\n", `  mail: {kind: http, url: "PROVIDER/mail", body: {to: "${effect.target}", text: "${effect.payload.text}", external_ref: "${effect.reference}"}, success: [200], provider_id: /id, timeout: 2s}
  shop: {kind: http, url: "PROVIDER/orders", body: {to: "${effect.target}", text: "${effect.payload.text}", external_ref: "${effect.reference}"}, success: [200], provider_id: /id, timeout: 1s,
    lookup: {url: "PROVIDER/objects?ref=${effect.reference}", found: "size(response.results) == 1", absent: "size(response.results) == 0", provider_id: /results/0/id, max_lag: 1s, settle: [1s, 2s, 4s]}}
  carrier: {kind: http, url: "PROVIDER/parcels", body: {to: "${effect.target}", text: "${effect.payload.text}", external_ref: "${effect.reference}"}, success: [200], timeout: 2s}
workflows:
  reply:
    contract: draft.json
    effects: {reply: {type: email.reply, connector: mail, consequence: customer_message, target: "${event.id}", payload: {text: "${draft.text}"}}}
    gate: {pattern: approve_before_act, roles: [lead], approve_by: 24h, execute_by: 48h}
  book:
    contract: draft.json
    effects: {book: {type: order.book, connector: shop, consequence: customer_message, target: "${event.id}", payload: {text: "${draft.text}"}}}
    gate: {pattern: approve_before_act, roles: [lead], approve_by: 24h, execute_by: 48h}
  parcel:
    contract: draft.json
    effects: {ship: {type: parcel.ship, connector: carrier, consequence: customer_message, target: "${event.id}", payload: {text: "${draft.text}"}}}
    gate: {pattern: approve_before_act, roles: [lead], approve_by: 24h, execute_by: 48h}
`, 1)

// measureFootprint measures what one server costs that has little to do: memory, the time to start, and how long a
// decision takes to become a request.
func measureFootprint(ctx context.Context, b *bench, d database) (err error) {
	p, err := startProvider()
	if err != nil {
		return err
	}
	defer p.close()
	address, err := d.create(ctx, b, "footprint", "")
	if err != nil {
		return err
	}
	defer func() { err = firstError(err, d.drop(ctx, address)) }()
	i, err := b.newInstance(ctx, address, p.url())
	if err != nil {
		return err
	}
	if err := i.activate(ctx, footprintPolicy, p.url()); err != nil {
		return err
	}
	var ready []float64
	for range b.Starts {
		start := time.Now()
		if err := i.serve(ctx); err != nil {
			return err
		}
		ready = append(ready, float64(time.Since(start).Milliseconds()))
		if err := i.stop(); err != nil {
			return err
		}
	}
	if err := i.serve(ctx); err != nil {
		return err
	}
	defer func() { err = firstError(err, i.stop()) }()
	wait(ctx, b.Quiet)
	idle, err := i.resident()
	if err != nil {
		return err
	}
	if err := i.logIn(ctx, b.LogIns); err != nil {
		return err
	}
	wait(ctx, b.Quiet)
	after, err := i.resident()
	if err != nil {
		return err
	}
	took, err := i.decided(ctx, p)
	if err != nil {
		return err
	}
	fmt.Printf("footprint, %s, one server with the policy of the demo's size\n", d.kind())
	fmt.Printf("  resident %s after the start         %5.1f MB   target ≤ %d MB\n", b.Quiet, idle, targetRSS)
	fmt.Printf("  resident %s after %d log-ins        %5.1f MB   target ≤ %d MB\n", b.Quiet, b.LogIns, after, targetLogIns)
	fmt.Printf("  start to /readyz, median of %d        %5.0f ms   target ≤ %d ms\n", b.Starts, median(ready), targetStart.Milliseconds())
	fmt.Printf("  answer of a decision to first byte at the provider, median of %d: %.1f ms   target ≤ %d ms\n\n", b.Decisions, median(took), targetDecision.Milliseconds())
	return nil
}

// resident gives the server's resident memory in MB.
func (i *instance) resident() (float64, error) {
	kB, ok := strings.CutSuffix(field(filepath.Join("/proc", strconv.Itoa(i.cmd.Process.Pid), "status"), "VmRSS"), " kB")
	n, err := strconv.ParseFloat(kB, 64)
	if !ok || err != nil {
		return 0, errors.New("the kernel does not say how much memory the server has")
	}
	return n / 1024, nil
}

// logIn logs Ana in again and again, waiting as long as the server's limit asks.
func (i *instance) logIn(ctx context.Context, times int) error {
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	form := url.Values{"email": {ana}, "password": {password}}.Encode()
	for done, deadline := 0, time.Now().Add(20*time.Minute); done < times; {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+i.addr+"/login", strings.NewReader(form))
		if err != nil {
			return err
		}
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		resp, err := client.Do(req)
		if err != nil {
			return err
		}
		_ = resp.Body.Close()
		switch {
		case resp.StatusCode == http.StatusSeeOther:
			done++
		case resp.StatusCode == http.StatusTooManyRequests && time.Now().Before(deadline):
			wait(ctx, time.Second)
		default:
			return fmt.Errorf("log-in %d answered %d", done+1, resp.StatusCode)
		}
	}
	return nil
}

// decided approves one effect after another and gives, for each, the milliseconds from the answer of the decision to the
// first byte at the provider. A request that came before the answer counts as 0.
func (i *instance) decided(ctx context.Context, p *provider) ([]float64, error) {
	if err := i.turn(true); err != nil {
		return nil, err
	}
	w, err := newWorker(i, 0)
	if err != nil {
		return nil, err
	}
	defer w.close()
	var took []float64
	for n := range int64(i.b.Decisions) {
		arrived := p.expect(string(appendName(nil, 0, n)))
		if err := w.approved(0, n); err != nil {
			return nil, err
		}
		answered := time.Now()
		at, err := within(ctx, arrived)
		if err != nil {
			return nil, err
		}
		took = append(took, max(0, float64(at.Sub(answered).Microseconds())/1000))
		wait(ctx, 10*time.Millisecond) // what follows a request ends before the next decision
	}
	return took, nil
}

// activate puts a policy in force.
func (i *instance) activate(ctx context.Context, document, provider string) error {
	document = strings.ReplaceAll(document, "PROVIDER", provider)
	err := errors.Join(os.WriteFile(filepath.Join(i.dir, "holdpoint.yaml"), []byte(document), 0o644), os.WriteFile(filepath.Join(i.dir, "draft.json"), []byte(contract), 0o644))
	if err != nil {
		return err
	}
	return i.command(ctx, nil, "", "policy", "activate", "--local")
}
