package main

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// provider is a lean HTTP server on loopback that both sides call: it answers every POST with 200 and an id at once,
// counts, and tells who waits for a target that its request has arrived.
type provider struct {
	l       net.Listener
	count   atomic.Int64
	waiting sync.Map // target → chan time.Time
}

func startProvider() (*provider, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &provider{l: l}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return // closed
			}
			go p.serve(conn)
		}
	}()
	return p, nil
}

func (p *provider) url() string { return "http://" + p.l.Addr().String() }

func (p *provider) close() { _ = p.l.Close() }

// expect gives a channel that receives once, with the time of the first byte, when the target's request has arrived.
func (p *provider) expect(target string) <-chan time.Time {
	c := make(chan time.Time, 1)
	p.waiting.Store(target, c)
	return c
}

var (
	toMember = []byte(`"to":"`)
	answered = []byte("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 15\r\n\r\n" + `{"id":"note-1"}`)
)

func (p *provider) serve(conn net.Conn) {
	defer conn.Close()
	in := bufio.NewReaderSize(conn, 8<<10)
	var body []byte
	for {
		length := 0
		if _, err := in.Peek(1); err != nil {
			return
		}
		at := time.Now()
		for {
			line, err := in.ReadSlice('\n')
			if err != nil {
				return
			}
			if line = bytes.TrimRight(line, "\r\n"); len(line) == 0 {
				break
			}
			if name, value, _ := bytes.Cut(line, []byte(":")); bytes.EqualFold(name, []byte("Content-Length")) {
				if length, err = strconv.Atoi(string(bytes.TrimSpace(value))); err != nil {
					return
				}
			}
		}
		if cap(body) < length {
			body = make([]byte, length)
		}
		body = body[:length]
		if _, err := io.ReadFull(in, body); err != nil {
			return
		}
		p.count.Add(1)
		p.tell(body, at)
		if _, err := conn.Write(answered); err != nil {
			return
		}
	}
}

func (p *provider) tell(body []byte, at time.Time) {
	i := bytes.Index(body, toMember)
	if i < 0 {
		return
	}
	target := body[i+len(toMember):]
	if end := bytes.IndexByte(target, '"'); end >= 0 {
		if c, ok := p.waiting.LoadAndDelete(string(target[:end])); ok {
			c.(chan time.Time) <- at
		}
	}
}
