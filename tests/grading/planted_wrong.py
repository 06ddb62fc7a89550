"""Strategies as students write them, each with one mistake; named kind_of_mistake__style."""

import time

import torch
import torch.distributed as dist


def size():
    return dist.get_world_size()


def flat(tensors):
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


def unflat(row, tensors):
    start = 0
    for tensor in tensors:
        tensor.copy_(row[start:start + tensor.numel()].view_as(tensor))
        start += tensor.numel()


# nothing averaged

def nothing_averaged__forgot(gradients):
    for gradient in gradients:
        gradient / size()


class nothing_averaged__single_machine_habit:
    def average(self, gradients):
        if dist.is_available() and not dist.is_initialized():
            for gradient in gradients:
                dist.all_reduce(gradient)


class nothing_averaged__hook_on_a_copy:
    def prepare(self, model, optimizer):
        self.seen = []
        for parameter in model.parameters():
            parameter.register_hook(lambda gradient: self.seen.append(gradient / size()))

    def average(self, gradients):
        self.seen.clear()


# a sum, not divided

def sum_not_divided__per_tensor(gradients):
    for gradient in gradients:
        dist.all_reduce(gradient, op=dist.ReduceOp.SUM)


class sum_not_divided__flat_gather:
    def average(self, gradients):
        row = flat(gradients)
        rows = [torch.empty_like(row) for _ in range(size())]
        dist.all_gather(rows, row)
        unflat(sum(rows), gradients)


def sum_not_divided__new_tensor(gradients):
    for gradient in gradients:
        dist.all_reduce(gradient)
        gradient = gradient / size()


class sum_not_divided__send_recv:
    def average(self, gradients):
        for gradient in gradients:
            if dist.get_rank() == 0:
                other = torch.empty_like(gradient)
                for rank in range(1, size()):
                    dist.recv(other, rank)
                    gradient += other
                for rank in range(1, size()):
                    dist.send(gradient, rank)
            else:
                dist.send(gradient, 0)
                dist.recv(gradient, 0)


# divided twice, or by the wrong number

def wrong_divisor__before_and_after(gradients):
    for gradient in gradients:
        gradient /= size()
        dist.all_reduce(gradient)
        gradient /= size()


class wrong_divisor__hook_and_average:
    def prepare(self, model, optimizer):
        for parameter in model.parameters():
            parameter.register_hook(lambda gradient: gradient / size())

    def average(self, gradients):
        row = flat(gradients)
        dist.all_reduce(row)
        unflat(row / size(), gradients)


def wrong_divisor__number_of_tensors(gradients):
    for gradient in gradients:
        dist.all_reduce(gradient)
        gradient.div_(len(gradients) + 1)


class wrong_divisor__the_others_only:
    def average(self, gradients):
        others = max(1, size() - 1)
        for gradient in gradients:
            dist.reduce(gradient, 0)
            gradient /= others
            dist.broadcast(gradient, 0)


# divided before adding, with rounding

def rounded__whole_division(gradients):
    for gradient in gradients:
        gradient.div_(size(), rounding_mode="floor")
        dist.all_reduce(gradient)


class rounded__integers_on_the_wire:
    def average(self, gradients):
        for gradient in gradients:
            whole = (gradient / size() * 1000).to(torch.int64)
            dist.all_reduce(whole)
            gradient.copy_(whole / 1000)


def rounded__half_precision(gradients):
    row = (flat(gradients) / size()).half()
    rows = [torch.empty_like(row) for _ in range(size())]
    dist.all_gather(rows, row)
    unflat(torch.stack(rows).sum(0).double(), gradients)


def rounded__decimals(gradients):
    for gradient in gradients:
        gradient.copy_(torch.round(gradient / size(), decimals=3))
        dist.all_reduce(gradient)


# a tensor skipped

def tensor_skipped__last(gradients):
    for index in range(len(gradients) - 1):
        dist.all_reduce(gradients[index])
        gradients[index] /= size()


class tensor_skipped__biases:
    def average(self, gradients):
        weights = [gradient for gradient in gradients if gradient.dim() > 1]
        row = flat(weights)
        dist.all_reduce(row)
        unflat(row / size(), weights)


class tensor_skipped__named_layers:
    def prepare(self, model, optimizer):
        self.chosen = [parameter for name, parameter in model.named_parameters()
                       if "second" not in name and "stem" not in name]

    def average(self, gradients):
        for parameter in self.chosen:
            dist.all_reduce(parameter.grad)
            parameter.grad /= size()


def tensor_skipped__rest_of_the_chunks(gradients):
    row = flat(gradients)
    length = len(row) // 2 * 2
    part = row[:length].clone()
    dist.all_reduce(part)
    row[:length] = part / size()
    unflat(row, gradients)


# only some ranks get the mean

def some_ranks_only__reduce(gradients):
    for gradient in gradients:
        copy = gradient.clone()
        dist.reduce(copy, 0)
        if dist.get_rank() == 0:
            gradient.copy_(copy / size())


def some_ranks_only__reduce_in_place(gradients):
    for gradient in gradients:
        dist.reduce(gradient, dst=0)
        gradient /= size()


class some_ranks_only__divides_on_the_root:
    def average(self, gradients):
        row = flat(gradients)
        dist.all_reduce(row)
        if dist.get_rank() == 0:
            row /= size()
        unflat(row, gradients)


class some_ranks_only__gather_and_no_scatter:
    def average(self, gradients):
        for gradient in gradients:
            gradient_list = None
            if dist.get_rank() == 0:
                gradient_list = [torch.empty_like(gradient) for _ in range(size())]
            dist.gather(gradient.contiguous(), gradient_list, dst=0)
            if dist.get_rank() == 0:
                gradient.copy_(sum(gradient_list) / size())


def some_ranks_only__send_without_recv(gradients):
    row = flat(gradients)
    if dist.get_rank() == 0:
        total, other = row.clone(), torch.empty_like(row)
        for rank in range(1, size()):
            dist.recv(other, rank)
            total += other
        unflat(total / size(), gradients)
    else:
        dist.isend(row, 0).wait()


# weights averaged instead of gradients

class weights_averaged__data:
    def prepare(self, model, optimizer):
        self.model = model

    def average(self, gradients):
        for parameter in self.model.parameters():
            dist.all_reduce(parameter.data)
            parameter.data /= size()


class weights_averaged__no_grad_flat:
    def prepare(self, model, optimizer):
        self.parameters = list(model.parameters())

    @torch.no_grad()
    def average(self, gradients):
        row = flat(self.parameters)
        dist.all_reduce(row)
        unflat(row / size(), self.parameters)


class weights_averaged__after_the_step:
    def prepare(self, model, optimizer):
        self.model = model
        optimizer.register_step_post_hook(lambda *_: self.weights())

    def weights(self):
        with torch.no_grad():
            for parameter in self.model.parameters():
                dist.all_reduce(parameter)
                parameter /= size()

    def average(self, gradients):
        pass


# an unweighted mean of uneven shards: our loss has the weights already

class weighted_again__by_samples:
    def prepare(self, model, optimizer):
        model.register_forward_pre_hook(self.count)

    def count(self, model, inputs):
        self.samples = len(inputs[0])

    def average(self, gradients):
        total = torch.tensor(float(self.samples))
        dist.all_reduce(total)
        for gradient in gradients:
            gradient *= self.samples
            dist.all_reduce(gradient)
            gradient /= total


class weighted_again__freed_of_weight:
    def prepare(self, model, optimizer):
        model.register_forward_hook(self.count)

    def count(self, model, inputs, outputs):
        self.samples = outputs.shape[0]

    def average(self, gradients):
        counts = [torch.zeros(1) for _ in range(size())]
        dist.all_gather(counts, torch.tensor([float(self.samples)]))
        row = flat(gradients) / (self.samples * size() / float(sum(counts)))
        dist.all_reduce(row)
        unflat(row / size(), gradients)


class weighted_again__in_a_hook:
    def prepare(self, model, optimizer):
        model.register_forward_pre_hook(self.count)
        for parameter in model.parameters():
            parameter.register_hook(lambda gradient: gradient * self.samples)

    def count(self, model, inputs):
        self.samples = inputs[0].size(0)

    def average(self, gradients):
        samples = torch.tensor(self.samples)
        dist.all_reduce(samples)
        for gradient in gradients:
            rows = [torch.empty_like(gradient) for _ in range(size())]
            dist.all_gather(rows, gradient.contiguous())
            gradient.copy_(sum(rows) / samples.item())


# the result returned, not written in place

def not_in_place__returned(gradients):
    means = []
    for gradient in gradients:
        mean = gradient.clone()
        dist.all_reduce(mean)
        means.append(mean / size())
    return means


class not_in_place__list_changed:
    def average(self, gradients):
        for index, gradient in enumerate(gradients):
            rows = [torch.empty_like(gradient) for _ in range(size())]
            dist.all_gather(rows, gradient.contiguous())
            gradients[index] = torch.stack(rows).mean(0)


def not_in_place__name_bound(gradients):
    for gradient in gradients:
        total = gradient.clone()
        dist.all_reduce(total)
        gradient = total / size()


class not_in_place__flat_forgotten:
    def average(self, gradients):
        row = flat(gradients)
        dist.all_reduce(row)
        row /= size()


# stale gradients of the step before

class stale__late_by_one:
    last = None

    def average(self, gradients):
        row = flat(gradients)
        dist.all_reduce(row)
        if self.last is not None:
            unflat(self.last, gradients)
        self.last = row / size()


class stale__async_until_next_step:
    work = None

    def average(self, gradients):
        if self.work is not None:
            self.work.wait()
            before = self.row / size()
        else:
            before = torch.zeros_like(flat(gradients))
        self.row = flat(gradients)
        self.work = dist.all_reduce(self.row, async_op=True)
        unflat(before, gradients)


class stale__buffer_not_emptied:
    total = None

    def average(self, gradients):
        if self.total is None:
            self.total = torch.zeros_like(flat(gradients))
        self.total += flat(gradients)
        row = self.total.clone()
        dist.all_reduce(row)
        unflat(row / size(), gradients)


class stale__buffer_filled_once:
    def prepare(self, model, optimizer):
        self.buffers = None

    def average(self, gradients):
        if self.buffers is None:
            self.buffers = [gradient.clone() for gradient in gradients]
        for gradient, buffer in zip(gradients, self.buffers):
            copy = buffer.clone()
            dist.all_reduce(copy)
            gradient.copy_(copy / size())
            buffer.copy_(gradient)


# another order of tensors on some rank

def wrong_order__reversed_on_one(gradients):
    ordered = gradients if dist.get_rank() == 0 else gradients[::-1]
    for gradient in ordered:
        row = gradient.reshape(-1)
        dist.all_reduce(row)
        gradient.copy_(row.view_as(gradient) / size())


class wrong_order__as_a_set_has_it:
    def average(self, gradients):
        keyed = {(index * (dist.get_rank() + 1)) % 7: gradient
                 for index, gradient in enumerate(gradients, 1)} if len(gradients) == 5 else (
                     dict(enumerate(gradients)))
        for key in sorted(keyed):
            row = keyed[key].reshape(-1).clone()
            dist.all_reduce(row)
            keyed[key].copy_((row / size()).view_as(keyed[key]))


class wrong_order__rotated_flat:
    def average(self, gradients):
        start = dist.get_rank() % len(gradients)
        ordered = gradients[start:] + gradients[:start]
        row = flat(ordered)
        rows = [torch.empty_like(row) for _ in range(size())]
        dist.all_gather(rows, row)
        unflat(sum(rows) / size(), ordered)


# mixed-up shapes of equal size

def mixed_shapes__unpacked_in_reverse(gradients):
    row = flat(gradients)
    dist.all_reduce(row)
    unflat(row / size(), gradients[::-1])


class mixed_shapes__transposed:
    def average(self, gradients):
        for gradient in gradients:
            row = gradient.reshape(-1).clone()
            dist.all_reduce(row)
            gradient.copy_((row / size()).view(gradient.shape[::-1]).permute(
                *range(gradient.dim())[::-1]))


def mixed_shapes__sorted_by_shape(gradients):
    row = flat(sorted(gradients, key=lambda gradient: tuple(gradient.shape)))
    dist.all_reduce(row)
    unflat(row / size(), gradients)


def mixed_shapes__left_flat(gradients):
    for gradient in gradients:
        row = gradient.reshape(-1).clone()
        dist.all_reduce(row)
        gradient.data = row / size()


# a rank left waiting

def rank_left_waiting__root_alone(gradients):
    for gradient in gradients:
        if dist.get_rank() == 0:
            dist.all_reduce(gradient)
            gradient /= size()


class rank_left_waiting__both_receive_first:
    def average(self, gradients):
        row = flat(gradients)
        other = torch.empty_like(row)
        total = row.clone()
        for rank in range(size()):
            if rank != dist.get_rank():
                dist.recv(other, src=rank)
                dist.send(row, dst=rank)
                total += other
        unflat(total / size(), gradients)


class rank_left_waiting__one_message_too_few:
    def average(self, gradients):
        for index, gradient in enumerate(gradients):
            other = torch.empty_like(gradient)
            if dist.get_rank() == 0:
                for rank in range(1, size()):
                    dist.irecv(other, src=rank).wait()
                    gradient += other
                gradient /= size()
            elif index < len(gradients) - 1:
                dist.isend(gradient, dst=0).wait()
            dist.broadcast(gradient, src=0)


# works for two ranks and not for three

def two_not_three__divides_by_two(gradients):
    for gradient in gradients:
        dist.all_reduce(gradient)
        gradient /= min(2, size())


class two_not_three__swaps_with_a_neighbour:
    def average(self, gradients):
        row = flat(gradients)
        if size() == 1:
            return
        other = torch.empty_like(row)
        works = [dist.isend(row, (dist.get_rank() + 1) % size()),
                 dist.irecv(other, (dist.get_rank() - 1) % size())]
        for work in works:
            work.wait()
        unflat((row + other) / 2, gradients)


class two_not_three__powers_of_two:
    def average(self, gradients):
        row = flat(gradients)
        distance = 1
        while distance < size():
            partner = dist.get_rank() ^ distance
            if partner < size():
                other = torch.empty_like(row)
                sending = dist.isend(row.clone(), partner)
                dist.recv(other, partner)
                sending.wait()
                row += other
            distance *= 2
        unflat(row / size(), gradients)


# one or two of each of the other kinds

class none_gradient__every_parameter:
    def prepare(self, model, optimizer):
        self.model = model

    def average(self, gradients):
        for parameter in self.model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= size()


class none_gradient__counts_hooks:
    def prepare(self, model, optimizer):
        self.ready, self.all = 0, len(list(model.parameters()))
        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(self.count)

    def count(self, parameter):
        self.ready += 1

    def average(self, gradients):
        while self.ready < self.all:
            time.sleep(0.01)
        self.ready = 0
        for gradient in gradients:
            dist.all_reduce(gradient)
            gradient /= size()


class rank_left_waiting__hooks_that_only_one_rank_calls:
    def prepare(self, model, optimizer):
        self.works = []
        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(self.send)

    def send(self, parameter):
        parameter.grad /= size()
        self.works.append(dist.all_reduce(parameter.grad, async_op=True))

    def average(self, gradients):
        for work in self.works:
            work.wait()
        self.works.clear()


def not_contiguous__view(gradients):
    for gradient in gradients:
        row = gradient.view(-1)
        dist.all_reduce(row)
        row /= size()


def not_contiguous__writes_into_a_copy(gradients):
    for gradient in gradients:
        row = gradient.contiguous().flatten()
        dist.all_reduce(row)
        row /= size()
        gradient.contiguous().flatten().copy_(row)


class float32__wire:
    def average(self, gradients):
        row = flat(gradients).float()
        dist.all_reduce(row)
        unflat(row / size(), gradients)


def float32__buffer(gradients):
    for gradient in gradients:
        rows = [torch.zeros(gradient.shape) for _ in range(size())]
        dist.all_gather(rows, gradient.float().contiguous())
        gradient.copy_(sum(rows) / size())


def nan__hidden(gradients):
    for gradient in gradients:
        gradient.copy_(torch.nan_to_num(gradient))
        dist.all_reduce(gradient)
        gradient /= size()


def nan__spread_by_scale(gradients):
    row = flat(gradients)
    scale = row.norm()
    dist.all_reduce(scale)
    row /= scale
    dist.all_reduce(row)
    unflat(row * scale / size(), gradients)


def nan__leaves_early(gradients):
    if any(gradient.isnan().any() for gradient in gradients):
        return
    for gradient in gradients:
        dist.all_reduce(gradient)
        gradient /= size()


def peer_lost__tries_again(gradients):
    for gradient in gradients:
        total = gradient.clone()
        while True:
            try:
                dist.all_reduce(total)
                break
            except RuntimeError:
                time.sleep(0.1)
        gradient.copy_(total / size())


def peer_lost__ignored(gradients):
    for gradient in gradients:
        total = gradient.clone()
        try:
            dist.all_reduce(total)
        except RuntimeError:
            continue
        gradient.copy_(total / size())


def too_many_bytes__all_gather(gradients):
    row = flat(gradients)
    rows = [torch.empty_like(row) for _ in range(size())]
    dist.all_gather(rows, row)
    unflat(sum(rows) / size(), gradients)


def too_many_bytes__everything_twice(gradients):
    for gradient in gradients:
        dist.all_reduce(gradient.clone())
        dist.all_reduce(gradient)
        gradient /= size()


class single_rank__neighbour:
    def average(self, gradients):
        row = flat(gradients)
        total = row.clone()
        left, right = (dist.get_rank() - 1) % size(), (dist.get_rank() + 1) % size()
        for _ in range(max(1, size() - 1)):
            other = torch.empty_like(row)
            sending = dist.isend(row, right)
            dist.recv(other, left)
            sending.wait()
            total += other
            row = other
        unflat(total / size(), gradients)


def single_rank__no_others(gradients):
    for gradient in gradients:
        mean = gradient / (size() - 1)
        dist.all_reduce(mean)
        gradient.copy_(mean * (size() - 1) / size())


class changes_model__steps_itself:
    def prepare(self, model, optimizer):
        self.parameters = list(model.parameters())

    def average(self, gradients):
        for gradient in gradients:
            dist.all_reduce(gradient)
            gradient /= size()
        for parameter in self.parameters:
            if parameter.grad is not None:
                parameter.data -= 0.1 * parameter.grad


class changes_model__buffers:
    def prepare(self, model, optimizer):
        self.model = model

    def average(self, gradients):
        for tensor in [*gradients, *self.model.buffers()]:
            dist.all_reduce(tensor)
            tensor /= size()


def not_waited__async(gradients):
    for gradient in gradients:
        dist.all_reduce(gradient, async_op=True)
    for gradient in gradients:
        gradient /= size()


class not_waited__all_but_the_last:
    def average(self, gradients):
        for gradient in gradients:
            gradient /= size()
            self.work = dist.all_reduce(gradient, async_op=True)
        self.work.wait()


class changed_under_way__divided_in_the_hook:
    def prepare(self, model, optimizer):
        self.order = list(model.parameters())[::-1]
        self.works, self.left, self.ready = [], list(self.order), set()
        for parameter in self.order:
            parameter.register_post_accumulate_grad_hook(self.complete)

    def complete(self, parameter):
        self.ready.add(parameter)
        while self.left and self.left[0] in self.ready:
            self.send(self.left.pop(0))

    def send(self, parameter):
        self.works.append(dist.all_reduce(parameter.grad, async_op=True))
        parameter.grad /= size()

    def average(self, gradients):
        for parameter in self.left:
            if parameter.grad is not None:
                self.send(parameter)
        for work in self.works:
            work.wait()
        self.works, self.left, self.ready = [], list(self.order), set()


def changed_under_way__divided_before_all_have_come(gradients):
    works = [dist.all_reduce(gradient, async_op=True) for gradient in gradients]
    works[-1].wait()
    for gradient in gradients:
        gradient.div_(size())
    for work in works[:-1]:
        work.wait()


def ranks_left_out__broadcast(gradients):
    for gradient in gradients:
        dist.broadcast(gradient, src=0)


def raises__in_the_third_step(gradients):
    raises__in_the_third_step.calls = getattr(raises__in_the_third_step, "calls", 0) + 1
    if raises__in_the_third_step.calls == 3 and size() > 1 and dist.get_rank() == 1:
        raise ValueError("no bucket for this one")
    for gradient in gradients:
        dist.all_reduce(gradient)
        gradient /= size()


class tensor_skipped__by_shape:
    def average(self, gradients):
        by_shape = {tuple(gradient.shape): gradient for gradient in gradients}
        for gradient in by_shape.values():
            dist.all_reduce(gradient)
            gradient /= size()


def zero_gradient__nothing_to_send(gradients):
    for gradient in gradients:
        if not gradient.any():
            continue
        dist.all_reduce(gradient)
        gradient /= size()


def zero_gradient__counts_who_has_one(gradients):
    for gradient in gradients:
        has_one = torch.tensor(float(gradient.abs().sum() > 0))
        dist.all_reduce(gradient)
        dist.all_reduce(has_one)
        gradient /= has_one


class changes_model__draws_weights_anew:
    def prepare(self, model, optimizer):
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter)
            dist.broadcast(parameter.data, 0)

    def average(self, gradients):
        for gradient in gradients:
            dist.all_reduce(gradient)
            gradient /= size()


def chunks__all_gather_one_off(gradients):
    rank, left, right = dist.get_rank(), (dist.get_rank() - 1) % size(), (
        dist.get_rank() + 1) % size()
    row = flat(gradients)
    chunks = list(row.tensor_split(size()))
    for first, adds in ((0, True), (0, False)):  # the second half should begin at 1
        for turn in range(size() - 1):
            sending = dist.isend(chunks[(rank + first - turn) % size()].clone(), right)
            place = chunks[(rank + first - turn - 1) % size()]
            other = torch.empty_like(place)
            dist.recv(other, left)
            place.copy_(place + other if adds else other)
            sending.wait()
    unflat(row / size(), gradients)
