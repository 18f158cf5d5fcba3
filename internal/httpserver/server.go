package httpserver

import (
	"log/slog"
	"net/http"
	"time"
)

// The limits of a connection. No answer of this version streams, so a whole exchange has a bound.
const (
	headerTimeout = 10 * time.Second
	readTimeout   = 60 * time.Second
	writeTimeout  = 90 * time.Second
	idleTimeout   = 2 * time.Minute
	maxHeader     = 32 << 10
)

// NewServer makes a server for h whose connections cannot be held open by slow or idle callers. log gets what net/http
// reports about connections; nil discards.
func NewServer(h http.Handler, log *slog.Logger) *http.Server {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &http.Server{
		Handler:           h,
		ReadHeaderTimeout: headerTimeout,
		ReadTimeout:       readTimeout,
		WriteTimeout:      writeTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeader,
		ErrorLog:          slog.NewLogLogger(log.Handler(), slog.LevelWarn),
	}
}
