package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// apiserver answers what one speaker requests of a kube-apiserver, from memory: lists and watches, with streamed lists,
// in protobuf where the client prefers it. Writes succeed and change nothing. So neither etcd nor the storage of a
// kube-apiserver limits what is measured.
type apiserver struct {
	resources map[string]*resource // by name

	mu       sync.Mutex
	revision int
	watchers map[*watcher]struct{}
}

// resource is the objects of a kind.
type resource struct {
	version string // "v1" or "group/version"
	list    func() runtime.Object
	objects []runtime.Object
	// proto is set for kinds that have an encoding in protobuf.
	proto bool
}

// watcher is a watch in progress.
type watcher struct {
	resource string
	events   chan event
}

type event struct {
	kind   string
	object runtime.Object
}

func newAPIServer(resources map[string]*resource) *apiserver {
	s := &apiserver{resources: resources, revision: 1000, watchers: map[*watcher]struct{}{}}
	for _, r := range resources {
		for _, obj := range r.objects {
			s.stamp(obj)
		}
	}
	return s
}

// stamp gives an object the next revision.
func (s *apiserver) stamp(obj runtime.Object) {
	s.revision++
	metaOf(obj).SetResourceVersion(strconv.Itoa(s.revision))
}

func metaOf(obj runtime.Object) metav1.Object {
	m, err := meta.Accessor(obj)
	if err != nil {
		panic(err)
	}
	return m
}

// replace replaces an object and sends the change to the watches.
func (s *apiserver) replace(name string, i int, obj runtime.Object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stamp(obj)
	s.resources[name].objects[i] = obj
	for w := range s.watchers {
		if w.resource == name {
			w.events <- event{"MODIFIED", obj}
		}
	}
}

// serve serves until ctx ends.
func (s *apiserver) serve(ctx context.Context, listener net.Listener) error {
	server := &http.Server{Handler: s, BaseContext: func(net.Listener) context.Context { return ctx }, ReadHeaderTimeout: time.Minute}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

func (s *apiserver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	name := resourceOf(req.URL.Path)
	switch {
	case req.Method != http.MethodGet:
		accept(w, req)
	case s.resources[name] == nil:
		refuse(w, name)
	case req.URL.Query().Get("watch") != "":
		s.watch(w, req, name)
	default:
		s.list(w, req, name)
	}
}

// resourceOf returns the resource of a path such as /apis/GROUP/VERSION/namespaces/NAMESPACE/RESOURCE.
func resourceOf(path string) string {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	skip := 2 // api, v1
	if parts[0] == "apis" {
		skip = 3
	}
	if len(parts) > skip+2 && parts[skip] == "namespaces" {
		skip += 2
	}
	if len(parts) != skip+1 {
		return "" // a single object
	}
	return parts[skip]
}

// accept returns what was written.
func accept(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return
	}
	w.Header().Set("Content-Type", req.Header.Get("Content-Type"))
	if req.Method == http.MethodPost {
		w.WriteHeader(http.StatusCreated)
		_, _ = w.Write(body)
		return
	}
	w.Header().Set("Content-Type", runtime.ContentTypeJSON)
	_, _ = w.Write([]byte("{}"))
}

func refuse(w http.ResponseWriter, name string) {
	w.Header().Set("Content-Type", runtime.ContentTypeJSON)
	w.WriteHeader(http.StatusNotFound)
	_ = json.NewEncoder(w).Encode(metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
		Status:   metav1.StatusFailure, Reason: metav1.StatusReasonNotFound, Code: http.StatusNotFound,
		Message: fmt.Sprintf("resource %q not found", name),
	})
}

func (s *apiserver) list(w http.ResponseWriter, req *http.Request, name string) {
	r := s.resources[name]
	list := r.list()
	s.mu.Lock()
	err := meta.SetList(list, r.objects)
	m, _ := meta.ListAccessor(list)
	m.SetResourceVersion(strconv.Itoa(s.revision))
	s.mu.Unlock()
	if err != nil {
		panic(err)
	}
	c := codecOf(req, r)
	w.Header().Set("Content-Type", c.content)
	_ = c.object.Encode(list, w)
}

// watch sends all objects first if the request asks for it (KEP-3157), and then the changes.
func (s *apiserver) watch(w http.ResponseWriter, req *http.Request, name string) {
	r, c := s.resources[name], codecOf(req, s.resources[name])
	w.Header().Set("Content-Type", c.stream)
	w.WriteHeader(http.StatusOK)
	send := c.sender(w)
	self := &watcher{resource: name, events: make(chan event, 1<<14)}
	s.mu.Lock()
	var initial []runtime.Object
	if req.URL.Query().Get("sendInitialEvents") == "true" {
		initial = append(append(initial, r.objects...), s.end(r))
	}
	s.watchers[self] = struct{}{}
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.watchers, self)
		s.mu.Unlock()
	}()
	for i, obj := range initial {
		kind := "ADDED"
		if i == len(initial)-1 {
			kind = "BOOKMARK"
		}
		if send(event{kind, obj}) != nil {
			return
		}
	}
	flush := http.NewResponseController(w).Flush
	_ = flush()
	for {
		select {
		case <-req.Context().Done():
			return
		case e := <-self.events:
			if send(e) != nil || flush() != nil {
				return
			}
		}
	}
}

// end returns the object that marks the end of the initial events.
func (s *apiserver) end(r *resource) runtime.Object {
	list := r.list()
	item := newItem(list)
	m := metaOf(item)
	m.SetResourceVersion(strconv.Itoa(s.revision))
	m.SetAnnotations(map[string]string{metav1.InitialEventsAnnotationKey: "true"})
	return item
}
