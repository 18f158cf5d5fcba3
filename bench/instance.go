package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// The people of an instance: Ana approves, Otto operates.
const (
	ana      = "ana@acme.example"
	otto     = "otto@acme.example"
	password = "correct horse battery staple"
	keys     = 4 // machine keys, because each has an allowance of calls
)

// policyDocument has one workflow of one effect, decided by one person.
const policyDocument = `version: 1
redelivery_window: 30d
roles:
  lead:         {users: [` + ana + `]}
  operator:     {users: [` + otto + `]}
  switch-owner: {users: [` + otto + `]}
  policy-owner: {users: [` + otto + `]}
  tenant-admin: {users: [` + otto + `]}
connectors:
  crm:
    kind: http
    method: POST
    url: "PROVIDER/notes"
    body: {to: "${effect.target}", text: "${effect.payload.text}", external_ref: "${effect.reference}"}
    success: [200]
    provider_id: /id
    concurrency: 256
workflows:
  order:
    contract: draft.json
    effects:
      note: {type: crm.note, connector: crm, consequence: crm_change, target: "${event.id}", payload: {text: "${draft.text}"}}
    gate: {pattern: approve_before_act, roles: [lead], approve_by: 24h, execute_by: 48h}
`

const contract = `{"$schema": "https://json-schema.org/draft/2020-12/schema", "type": "object", "required": ["text"], "additionalProperties": false,
 "properties": {"text": {"type": "string", "minLength": 1, "maxLength": 4000}}}`

// instance is one Holdpoint: a store with policy, people and keys, and the process that serves it.
type instance struct {
	b        *bench
	dir      string
	env      []string
	machines []string // keys of the work that machines do
	approver string   // Ana's token
	operator string   // Otto's token

	cmd   *exec.Cmd
	addr  string
	ended chan error
}

// newInstance makes an instance as an operator would, with the commands.
func (b *bench) newInstance(ctx context.Context, address, provider string) (*instance, error) {
	dir, err := os.MkdirTemp(b.dir, "instance-")
	if err != nil {
		return nil, err
	}
	i := &instance{b: b, dir: dir}
	i.at(address)
	var made struct {
		APIKey string `json:"api_key"`
	}
	if err := i.command(ctx, &made, "", "init", "--admin", otto); err != nil {
		return nil, err
	}
	i.machines = []string{made.APIKey}
	if err := i.command(ctx, nil, password+"\n", "users", "add", ana, "--local", "--password-stdin"); err != nil {
		return nil, err
	}
	if err := i.activate(ctx, policyDocument, provider); err != nil {
		return nil, err
	}
	var key struct {
		Key string `json:"key"`
	}
	for n := 1; n < keys; n++ {
		if err := i.command(ctx, &key, "", "keys", "create", "--name", fmt.Sprint("bench-", n), "--scopes", "work,read", "--local"); err != nil {
			return nil, err
		}
		i.machines = append(i.machines, key.Key)
	}
	if err := i.command(ctx, &key, "", "users", "token", ana, "--scopes", "read,content,decide", "--local"); err != nil {
		return nil, err
	}
	i.approver = key.Key
	if err := i.command(ctx, &key, "", "users", "token", otto, "--scopes", "read,content,operate,switch,admin", "--local"); err != nil {
		return nil, err
	}
	i.operator = key.Key
	return i, nil
}

// at moves the instance to another database that holds the same store.
func (i *instance) at(address string) {
	i.env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + i.dir, "HOLDPOINT_EGRESS_ALLOW=127.0.0.0/8", "AI_ACTIONS_ENABLED=true", "HOLDPOINT_DB=" + address}
	if strings.HasPrefix(address, "postgres") {
		i.env = append(i.env, "HOLDPOINT_DB_DIRECT="+address)
	}
}

// command executes a command that must succeed, and reads its answer.
func (i *instance) command(ctx context.Context, into any, stdin string, args ...string) error {
	cmd := exec.CommandContext(ctx, i.b.Binary, append(args, "--json")...)
	var stdout, stderr bytes.Buffer
	cmd.Dir, cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = i.dir, i.env, strings.NewReader(stdin), &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("holdpoint %s: %w: %s", strings.Join(args, " "), err, stderr.Bytes())
	}
	if into == nil {
		return nil
	}
	return json.Unmarshal(stdout.Bytes(), into)
}

// serve starts the server with its default log and returns when it is ready.
func (i *instance) serve(ctx context.Context) error {
	log, err := os.Create(filepath.Join(i.dir, "serve.log"))
	if err != nil {
		return err
	}
	defer log.Close()
	i.cmd = exec.Command(i.b.Binary, "serve", "--json", "--listen", "127.0.0.1:0")
	i.cmd.Dir, i.cmd.Env, i.cmd.Stderr = i.dir, i.env, log
	i.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	stdout, err := i.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := i.cmd.Start(); err != nil {
		return err
	}
	var said struct {
		Addr string `json:"addr"`
	}
	if err := json.NewDecoder(stdout).Decode(&said); err != nil {
		_ = i.cmd.Wait()
		text, _ := os.ReadFile(log.Name())
		return fmt.Errorf("the server did not start: %w: %s", err, text)
	}
	i.addr, i.ended = said.Addr, make(chan error, 1)
	go func() { i.ended <- i.cmd.Wait() }()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) {
		resp, err := http.Get("http://" + i.addr + "/readyz")
		if err == nil {
			_ = resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return nil
			}
		}
		if time.Now().After(deadline) || ctx.Err() != nil {
			return errors.Join(fmt.Errorf("the server does not get ready"), err, i.stop())
		}
	}
}

// stop ends the server in order.
func (i *instance) stop() error {
	if err := i.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	select {
	case err := <-i.ended:
		return err
	case <-time.After(40 * time.Second):
		return errors.Join(errors.New("the server does not stop"), i.cmd.Process.Kill())
	}
}

// turn flips the switches of effects; on lets them go.
func (i *instance) turn(on bool) error {
	return errors.Join(i.flip("global", on), i.flip("tenant", on))
}

func (i *instance) flip(scope string, on bool) error {
	c, err := dial(i.addr)
	if err != nil {
		return err
	}
	defer c.close()
	_, err = c.do(http.StatusOK, head("PUT", i.operator), "/v1/switches/"+scope, []byte(fmt.Sprintf(`{"on":%t,"reason":"a measurement"}`, on)))
	return err
}
