package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
)

// wire is one keep-alive connection to a server that speaks HTTP/1.1. It exists because the load comes from the machine
// that is measured: net/http's client would take about as much of it as the server does. It is not safe for concurrent use.
type wire struct {
	conn net.Conn
	in   *bufio.Reader
	out  []byte
	body []byte
}

func dial(addr string) (*wire, error) {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return nil, err
	}
	return &wire{conn: conn, in: bufio.NewReaderSize(conn, 16<<10)}, nil
}

func (w *wire) close() { _ = w.conn.Close() }

// header is the part of a request that does not change between calls: before and after the path.
type header struct{ before, after []byte }

func head(method, token string) header {
	return header{[]byte(method + " "), []byte(" HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer " + token + "\r\nContent-Type: application/json\r\nContent-Length: ")}
}

// do makes one call and gives the answer's body, which is valid until the next call. Another status is an error.
func (w *wire) do(want int, h header, path string, body []byte) ([]byte, error) {
	w.out = append(w.out[:0], h.before...)
	w.out = append(w.out, path...)
	w.out = append(w.out, h.after...)
	w.out = strconv.AppendInt(w.out, int64(len(body)), 10)
	w.out = append(w.out, "\r\n\r\n"...)
	w.out = append(w.out, body...)
	if _, err := w.conn.Write(w.out); err != nil {
		return nil, err
	}
	status, err := w.answer()
	if err == nil && status != want {
		err = fmt.Errorf("%s answered %d: %s", path, status, w.body)
	}
	return w.body, err
}

var errAnswer = errors.New("this is no answer of HTTP/1.1")

func (w *wire) answer() (status int, err error) {
	line, err := w.in.ReadSlice('\n')
	if err != nil {
		return 0, err
	}
	if len(line) < 12 {
		return 0, errAnswer
	}
	if status, err = strconv.Atoi(string(line[9:12])); err != nil {
		return 0, errAnswer
	}
	length, chunked := 0, false
	for {
		line, err := w.in.ReadSlice('\n')
		if err != nil {
			return status, err
		}
		line = bytes.TrimRight(line, "\r\n")
		if len(line) == 0 {
			break
		}
		name, value, _ := bytes.Cut(line, []byte(": "))
		switch {
		case bytes.EqualFold(name, []byte("Content-Length")):
			if length, err = strconv.Atoi(string(value)); err != nil {
				return status, errAnswer
			}
		case bytes.EqualFold(name, []byte("Transfer-Encoding")):
			chunked = true
		}
	}
	w.body = w.body[:0]
	if !chunked {
		return status, w.read(length)
	}
	for {
		line, err := w.in.ReadSlice('\n')
		if err != nil {
			return status, err
		}
		n, err := strconv.ParseUint(string(bytes.TrimRight(line, "\r\n")), 16, 31)
		if err != nil {
			return status, errAnswer
		}
		if err := w.read(int(n)); err != nil {
			return status, err
		}
		if _, err := w.in.Discard(2); err != nil || n == 0 {
			return status, err
		}
	}
}

func (w *wire) read(n int) error {
	at := len(w.body)
	if cap(w.body) < at+n {
		w.body = append(make([]byte, 0, 2*(at+n)), w.body...)
	}
	w.body = w.body[:at+n]
	_, err := io.ReadFull(w.in, w.body[at:])
	return err
}

// find gives the text or number of a member, looked for behind the given names in turn.
func find(body []byte, names ...string) (string, error) {
	rest := body
	for _, n := range names {
		i := bytes.Index(rest, []byte(`"`+n+`":`))
		if i < 0 {
			return "", fmt.Errorf("the answer has no %q: %s", n, body)
		}
		rest = rest[i+len(n)+3:]
	}
	if len(rest) > 0 && rest[0] == '"' {
		rest = rest[1:]
		return string(rest[:max(0, bytes.IndexByte(rest, '"'))]), nil
	}
	return string(rest[:max(0, bytes.IndexAny(rest, ",}"))]), nil
}
