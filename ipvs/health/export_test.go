package health

var HalfOpen = halfOpen
