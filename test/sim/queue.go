package sim

// kind is the type of an event.
type kind uint8

const (
	arrival kind = iota // a datagram reaches a node
	tick                // the liveness loop of a node ticks
	wake                // the speaker's loop of a node plans at the planner's wake-up time
	act                 // the speaker's loop of a node applies its plan
	probe               // the prober of a node ticks
	call                // an action of the scenario
)

// event is an event with its time, in nanoseconds since the start.
type event struct {
	at    int64
	order uint64 // orders events of the same time by creation
	kind  kind
	iface uint8
	boot  uint32 // of the node's process; events of an earlier process are ignored
	node  *Speaker
	from  *Speaker
	data  []byte
	call  func()
}

func (e *event) before(f *event) bool { return e.at < f.at || e.at == f.at && e.order < f.order }

// queue is a binary heap of events, the earliest first.
type queue struct {
	events []event
	order  uint64
}

func (q *queue) push(e event) {
	q.order++
	e.order = q.order
	q.events = append(q.events, e)
	h, i := q.events, len(q.events)-1
	for i > 0 {
		up := (i - 1) / 2
		if !h[i].before(&h[up]) {
			return
		}
		h[i], h[up] = h[up], h[i]
		i = up
	}
}

func (q *queue) pop() event {
	h := q.events
	first, last := h[0], len(h)-1
	h[0], h[last] = h[last], event{}
	h = h[:last]
	q.events = h
	for i := 0; ; {
		least := i
		for child := 2*i + 1; child <= 2*i+2 && child < last; child++ {
			if h[child].before(&h[least]) {
				least = child
			}
		}
		if least == i {
			return first
		}
		h[i], h[least] = h[least], h[i]
		i = least
	}
}
